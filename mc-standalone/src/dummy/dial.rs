//! Finding and meeting the node agent.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Duration;

use mc_transport::backend::nonce;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::session::Session;
use super::shared::Settings;
use crate::error::DummyError;
use crate::greeting::{BadGreeting, Greeting, MAX_LEN};
use crate::socket::{Broken, Frame, Incoming, Outgoing};
use crate::wire::{
    Admission, Admitted, DUMMY, Hello, MAGIC, MAX_FRAME, SERVER, VERSION, Verdict, Welcome, decode,
    encode,
};

/// How often to look whether a node agent with a full queue takes connections again. The
/// system has no event for that.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A connection that was admitted.
pub(super) struct Dialed {
    pub(super) session: Session,
    pub(super) incoming: Incoming,
    /// The number that names this connection to the one that continues it.
    pub(super) number: u64,
}

/// Connects, as the continuation of an earlier connection or not.
pub(super) async fn dial(settings: &Settings, previous: Option<u64>) -> Result<Dialed, DummyError> {
    let patience = settings.connect_timeout;
    let dialed = timeout(patience, Dialer { settings, previous }.dial()).await;
    dialed.unwrap_or_else(|_| {
        let address = Arc::clone(&settings.address);
        Err(DummyError::TimedOut { address, after: patience })
    })
}

struct Dialer<'a> {
    settings: &'a Settings,
    previous: Option<u64>,
}

impl Dialer<'_> {
    async fn dial(&self) -> Result<Dialed, DummyError> {
        let greeting = self.greeting().await?;
        let stream = self.reach(&greeting.name).await?;
        // Any process can take the port of a node agent that is gone, and the name.
        let owner = stream.peer_cred().map_err(|error| self.gone(error))?.uid();
        if !self.settings.trusts(owner) {
            return Err(self.not_real(
                "it belongs to another user; trust that user (`DummyClientBuilder::trust_users`)",
            ));
        }
        self.shake_hands(&greeting, stream).await
    }

    /// Reads the greeting of the TCP port.
    async fn greeting(&self) -> Result<Greeting, DummyError> {
        let greeted = async {
            let stream = mc_net::connect(&*self.settings.address).await?;
            let mut bytes = Vec::with_capacity(MAX_LEN);
            stream.take(MAX_LEN as u64).read_to_end(&mut bytes).await?;
            Ok(bytes)
        };
        let bytes = greeted.await.map_err(|error| self.gone(error))?;
        Greeting::decode(&bytes).map_err(|bad| match bad {
            BadGreeting::Foreign => self.not_real("it does not greet as one; check the port"),
            BadGreeting::Version(_) => {
                DummyError::not_admitted(&self.settings.address, Verdict::UnknownVersion)
            }
        })
    }

    async fn reach(&self, name: &str) -> Result<UnixStream, DummyError> {
        loop {
            // What the runtime takes for an abstract name.
            let path = [b"\0", name.as_bytes()].concat();
            let error = match UnixStream::connect(OsStr::from_bytes(&path)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if error.kind() != io::ErrorKind::WouldBlock {
                let address = Arc::clone(&self.settings.address);
                let (socket, source) = (name.into(), Arc::new(error));
                return Err(DummyError::NotOnThisHost { address, socket, source });
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn shake_hands(
        &self,
        greeting: &Greeting,
        stream: UnixStream,
    ) -> Result<Dialed, DummyError> {
        let broken = |broken: Broken| match broken {
            Broken::Io(error) => self.gone(error),
            broken => self.gone(io::Error::new(io::ErrorKind::ConnectionAborted, broken)),
        };
        let outgoing = Outgoing::default();
        let say = |bytes: Vec<u8>| {
            outgoing.push(&stream, Frame::new(bytes));
            outgoing.flush(&stream)
        };
        let short = "messages of the handshake are short";
        let mut incoming = Incoming::new(MAX_FRAME);
        let nonce = nonce().map_err(|error| self.gone(error))?;
        let hello = Hello { magic: MAGIC, version: VERSION, nonce, previous: self.previous };
        // A peer without a place for us says so without waiting for a hello.
        let said = say(encode(&hello).expect(short)).await;
        let welcome = match (incoming.frame(&stream).await, said) {
            (Ok(welcome), _) => welcome,
            (Err(_), Err(unsaid)) => return Err(broken(unsaid)),
            (Err(unanswered), Ok(())) => return Err(broken(unanswered)),
        };
        let welcome: Welcome =
            decode(welcome).ok_or_else(|| self.not_real("its Unix socket speaks otherwise"))?;
        self.check(welcome.verdict)?;
        let (secret, theirs) = (greeting.secret, &welcome.nonce);
        if !secret.is_proven(SERVER, &nonce, theirs, &welcome.proof) {
            return Err(self.not_real("its Unix socket does not know the secret that it told"));
        }
        let proof = secret.proof(DUMMY, &nonce, theirs);
        say(encode(&Admission { proof }).expect(short)).await.map_err(broken)?;
        let admitted = incoming.frame(&stream).await.map_err(broken)?;
        let admitted: Admitted =
            decode(admitted).ok_or_else(|| self.not_real("its Unix socket speaks otherwise"))?;
        self.check(admitted.verdict)?;
        let address = Arc::clone(&self.settings.address);
        let session = Session::new(address, stream, welcome.max_calls);
        Ok(Dialed { session, incoming, number: welcome.session })
    }

    fn check(&self, verdict: Verdict) -> Result<(), DummyError> {
        match verdict {
            Verdict::Welcome => Ok(()),
            verdict => Err(DummyError::not_admitted(&self.settings.address, verdict)),
        }
    }

    fn gone(&self, source: io::Error) -> DummyError {
        let address = Arc::clone(&self.settings.address);
        DummyError::RealClientGone { address, source: Arc::new(source) }
    }

    fn not_real(&self, reason: &'static str) -> DummyError {
        DummyError::NotARealClient { address: Arc::clone(&self.settings.address), reason }
    }
}
