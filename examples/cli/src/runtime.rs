//! The threads that a server runs on.

use std::future::Future;
use std::io;

use crate::heap::Trimming;

/// Runs `server` to its end on `threads` threads called `name`, with as many file descriptors as
/// the system allows: a server has one for each connection. Memory that the server has freed goes
/// back to the system after some seconds. Tasks that it leaves
/// behind, transfers or connections that do not end when asked to, are dropped and
/// not waited for.
///
/// # Errors
/// The system's error when it refused the threads.
pub fn block_on_threads<T>(
    name: &str,
    threads: usize,
    server: impl Future<Output = T>,
) -> io::Result<T> {
    raise_descriptor_limit();
    let _trimming = Trimming::begin();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(server);
    runtime.shutdown_background();
    Ok(outcome)
}

/// Systems give a process few descriptors at first, for the sake of programs that use `select`.
#[cfg(unix)]
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, ?current, ?maximum, "the limit of file descriptors stays");
    }
}

#[cfg(not(unix))]
fn raise_descriptor_limit() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_never_ends_does_not_hold_up_the_end() {
        let outcome = block_on_threads("test", 1, async {
            tokio::spawn(std::future::pending::<()>());
            tokio::spawn(async { std::thread::current().name().map(str::to_owned) }).await
        });
        assert_eq!(outcome.unwrap().unwrap().as_deref(), Some("test"));
    }
}
