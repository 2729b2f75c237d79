"""A Rust module that opens a tuned config with the crate ort."""

from autotune.deploy.config import TunedConfig
from autotune.deploy.options import Value
from autotune.export.literals import identifier, rust_literal
from autotune.export.rendering import Rendering, Support, heading

_LEVELS = {
    "ORT_DISABLE_ALL": "Disable",
    "ORT_ENABLE_BASIC": "Level1",
    "ORT_ENABLE_EXTENDED": "Level2",
    "ORT_ENABLE_LAYOUT": "Level3",
    "ORT_ENABLE_ALL": "All",
}
_METHODS = {
    "intra_op_num_threads": "with_intra_threads",
    "inter_op_num_threads": "with_inter_threads",
    "execution_mode": "with_parallel_execution",
    "graph_optimization_level": "with_optimization_level",
    "enable_mem_pattern": "with_memory_pattern",
    "use_deterministic_compute": "with_deterministic_compute",
}
_SUPPORT = Support(options=set(_METHODS), allocator=False)


def render(config: TunedConfig, config_name: str, name: str) -> Rendering:
    """Returns a module with functions that open the session and make the run options."""
    session, lost = config.session, _SUPPORT.lost(config.session)
    module = f"{identifier(name)}_session"
    calls = [
        f".{_METHODS[option]}({_value(option, value)})?"
        for option, value in _SUPPORT.options_of(session).items()
    ]
    calls += [
        f".with_config_entry({rust_literal(key)}, {rust_literal(text)})?"
        for key, text in _SUPPORT.entries_of(session).items()
    ]
    calls += [
        f".with_dimension_override({rust_literal(dimension)}, {size})?"
        for dimension, size in session.free_dimensions.items()
    ]
    run_lines = [
        f"    options.set({rust_literal(key)}, {rust_literal(text)})?;\n"
        for key, text in session.run_entries.items()
    ]
    text = heading(config_name, "rust", lost, "//") + _TEMPLATE.format(
        calls="".join(f"        {call}\n" for call in calls),
        mutable="mut " if run_lines else "",
        run_lines="".join(run_lines),
        model=rust_literal(config.model.file),
    )
    return Rendering(
        texts={f"{module}.rs": text},
        lost=lost,
        use=f"mod {module}; let session = {module}::open(&folder_of_the_model)?;",
    )


def _value(option: str, value: Value) -> str:
    if option == "execution_mode":
        return str(value == "ORT_PARALLEL").lower()
    if option == "graph_optimization_level":
        return f"GraphOptimizationLevel::{_LEVELS[str(value)]}"
    return str(value).lower()


_TEMPLATE = """\
#![allow(dead_code, unused_imports)]

use std::path::Path;

use ort::session::builder::GraphOptimizationLevel;
use ort::session::{{NoSelectedOutputs, RunOptions, Session}};

/// Opens the session; `folder` holds the model's files.
pub fn open(folder: &Path) -> ort::Result<Session> {{
    Session::builder()?
{calls}        .commit_from_file(folder.join({model}))
}}

/// Makes the options to pass to each `Session::run_with_options`.
pub fn run_options() -> ort::Result<RunOptions<NoSelectedOutputs>> {{
    let {mutable}options = RunOptions::new()?;
{run_lines}    Ok(options)
}}
"""
