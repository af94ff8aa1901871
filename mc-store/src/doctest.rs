//! Where the examples of this crate's documentation run: a master, and often a client,
//! of their own. No part of the interface.

use std::error::Error;
use std::future::Future;

use crate::{ByteSize, Client, Master};

/// What an example returns.
pub type Outcome = Result<(), Box<dyn Error>>;

/// Runs `example` with the address of a master.
///
/// # Panics
/// When the example fails.
pub fn with_master<F: Future<Output = Outcome>>(example: impl FnOnce(String) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.expect("a runtime").block_on(async {
        let master = Master::builder().start().await?;
        example(master.local_addr().to_string()).await?;
        master.shutdown().await;
        Outcome::Ok(())
    });
    outcome.expect("the example works");
}

/// Runs `example` with a client that contributes 4 MiB under the name `node`.
///
/// # Panics
/// As [`with_master`].
pub fn with_client<F: Future<Output = Outcome>>(example: impl FnOnce(Client) -> F) {
    with_master(|master| async move {
        let builder = Client::builder().master(master).listen("127.0.0.1:0".parse()?);
        let builder = builder.segment_name("node").segment_size(ByteSize::mib(4));
        let client = builder.connect().await?;
        example(client.clone()).await?;
        client.shutdown().await;
        Ok(())
    });
}

/// A master on a thread of its own, which ends when the second part is dropped.
///
/// # Panics
/// When it does not start.
pub fn master_elsewhere() -> (String, impl Drop) {
    let (tell, told) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        with_master(|master| async move {
            tell.send(master)?;
            // An error is what the end of the other side looks like.
            let _ = stopped.await;
            Ok(())
        });
    });
    (told.recv().expect("a master"), Elsewhere(Some((stop, thread))))
}

struct Elsewhere(Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>);

impl Drop for Elsewhere {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            thread.join().expect("the master ends");
        }
    }
}
