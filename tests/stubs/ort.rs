pub struct Error;
pub type Result<T> = std::result::Result<T, Error>;

pub mod session {
    use super::Result;
    use std::marker::PhantomData;
    use std::path::Path;

    pub struct Session;
    pub struct NoSelectedOutputs;
    pub struct RunOptions<O>(PhantomData<O>);

    impl Session {
        pub fn builder() -> Result<builder::SessionBuilder> {
            Ok(builder::SessionBuilder)
        }
    }

    impl RunOptions<NoSelectedOutputs> {
        pub fn new() -> Result<RunOptions<NoSelectedOutputs>> {
            Ok(RunOptions(PhantomData))
        }
    }

    impl<O> RunOptions<O> {
        pub fn set(&mut self, _key: impl AsRef<str>, _value: impl AsRef<str>) -> Result<()> {
            Ok(())
        }
    }

    pub mod builder {
        use super::{Path, Result, Session};

        pub struct SessionBuilder;
        pub struct BuilderError;
        pub type BuilderResult = std::result::Result<SessionBuilder, BuilderError>;

        impl From<BuilderError> for crate::Error {
            fn from(_: BuilderError) -> Self {
                crate::Error
            }
        }

        pub enum GraphOptimizationLevel {
            Disable,
            Level1,
            Level2,
            Level3,
            All,
        }

        impl SessionBuilder {
            pub fn with_intra_threads(self, _num_threads: usize) -> BuilderResult {
                Ok(self)
            }
            pub fn with_inter_threads(self, _num_threads: usize) -> BuilderResult {
                Ok(self)
            }
            pub fn with_parallel_execution(self, _parallel_execution: bool) -> BuilderResult {
                Ok(self)
            }
            pub fn with_optimization_level(self, _level: GraphOptimizationLevel) -> BuilderResult {
                Ok(self)
            }
            pub fn with_memory_pattern(self, _enable: bool) -> BuilderResult {
                Ok(self)
            }
            pub fn with_deterministic_compute(self, _enable: bool) -> BuilderResult {
                Ok(self)
            }
            pub fn with_config_entry(
                self,
                _key: impl AsRef<str>,
                _value: impl AsRef<str>,
            ) -> BuilderResult {
                Ok(self)
            }
            pub fn with_dimension_override(self, _name: impl AsRef<str>, _size: i64) -> BuilderResult {
                Ok(self)
            }
            pub fn commit_from_file<P: AsRef<Path>>(&mut self, _path: P) -> Result<Session> {
                Ok(Session)
            }
        }
    }
}
