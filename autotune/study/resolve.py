"""A study's options become its context: everything is resolved for the model and this machine."""

from collections.abc import Callable
from dataclasses import replace

from autotune import __version__
from autotune.deploy.loaded import Environment
from autotune.facts.model import describe
from autotune.measure.metrics import WITHOUT_LABELS, top1
from autotune.search.context import Context
from autotune.search.objective import find
from autotune.search.samplers import make_sampler
from autotune.space.files import find_space
from autotune.space.resolve import batching_of
from autotune.space.start import in_batches, read_configuration
from autotune.storage.database import quiet_optuna
from autotune.study.metric import load_metric, source_digest
from autotune.study.options import StudyOptions
from autotune.study.seams import Seams
from autotune.study.searched_space import objectives_of, searched_space


def resolve_study(
    options: StudyOptions, seams: Seams, note: Callable[[str], None] | None = None
) -> Context:
    """Returns the context of the study that the options ask for.

    Args:
        note: Called with what ``--runtimes all`` installs; None installs nothing.

    Raises:
        AutotuneError: the request is wrong.
    """
    options.check()
    metric = None if options.metric is None else load_metric(options.metric)
    if options.sampler is not None:
        with quiet_optuna():
            make_sampler(options.sampler, options.seed)
    tried = [read_configuration(file) for file in options.first]
    options, model, workload = options.for_model(describe(options.model, options.pairs))
    unlabelled = [WITHOUT_LABELS] if metric is top1 and not workload.labels else []
    workload = replace(workload, warnings=(*model.remarks, *workload.warnings, *unlabelled))
    machine, runtime = seams.hardware(), seams.runtime()
    whole = find_space(options.space)
    clients = options.clients or whole.clients or 1
    options.check_space(whole)
    space, hint = searched_space(options, seams, whole, model, workload, machine, clients, note)
    batching = batching_of(space, model, workload)
    sizes = () if batching is None else batching.sizes
    objectives, prefer = objectives_of(options.with_changes(clients=clients, batch=sizes), space)
    return Context(
        study="",
        folder=options.folder,
        model=model,
        workload=workload,
        space=space,
        objectives=find(objectives),
        limits=options.limits_for(objectives),
        prefer=prefer,
        seed=options.seed,
        environment=Environment(
            autotune=__version__,
            onnxruntime=runtime.version,
            cpu=machine.cpu,
            cores=machine.usable_cores,
            fingerprint=machine.fingerprint(runtime),
        ),
        facts=machine.facts(runtime),
        batching=batching,
        clients=clients,
        metric=metric,
        metric_name=options.metric or "",
        metric_source=source_digest(options.metric) if options.metric else "",
        hint=hint,
        first=tuple(in_batches(configuration, batching) for configuration in tried),
    )
