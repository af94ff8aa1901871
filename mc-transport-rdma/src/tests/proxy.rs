//! A peer between two others, which changes what they say on the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mc_types::Endpoint;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::frames::receive;
use crate::wire::{Answer, GREETING_LEN, HELLO_LEN, MAX_ANSWER, MAX_REQUEST, PROOF_LEN, Request};

/// Requests of the proxy itself have numbers from here on; their answers are not passed on.
const OWN: u32 = 1 << 31;

/// Replaces an answer by the bytes that the peer receives.
pub(super) type Change = Box<dyn FnMut(u32, Answer) -> Vec<u8> + Send>;

pub(super) struct Proxy {
    pub(super) endpoint: Endpoint,
    /// Requests for queue pairs that passed.
    pub(super) lanes_asked: Arc<AtomicUsize>,
    /// Answers to requests of the proxy.
    pub(super) answered: Arc<AtomicUsize>,
    requests: mpsc::UnboundedSender<Vec<u8>>,
    tasks: tokio::task::JoinSet<()>,
}

impl Proxy {
    /// A proxy of the owner at `owner`, for one connection.
    pub(super) async fn start(owner: &Endpoint, mut change: Change) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let endpoint = Endpoint::new("rdma", &address).unwrap();
        let (requests, mut to_send) = mpsc::unbounded_channel::<Vec<u8>>();
        let (lanes_asked, answered) =
            (Arc::new(AtomicUsize::new(0)), Arc::<AtomicUsize>::default());
        let (asked, counted) = (Arc::clone(&lanes_asked), Arc::clone(&answered));
        let (owner, mut tasks) = (owner.address().to_owned(), tokio::task::JoinSet::new());
        let passed_on = requests.clone();
        tasks.spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(owner).await.unwrap();
            pass(&mut client, &mut server, HELLO_LEN).await;
            pass(&mut server, &mut client, GREETING_LEN).await;
            pass(&mut client, &mut server, PROOF_LEN).await;
            let ((mut client, mut to_client), (mut server, mut to_server)) =
                (client.into_split(), server.into_split());
            let requests = async move {
                while let Ok(frame) = receive(&mut client, MAX_REQUEST).await {
                    let (_, request) = Request::decode(&frame).unwrap();
                    if matches!(request, Request::Lanes(_)) {
                        asked.fetch_add(1, Ordering::SeqCst);
                    }
                    let _ = passed_on.send(framed(&frame));
                }
            };
            let sending = async move {
                while let Some(frame) = to_send.recv().await {
                    if to_server.write_all(&frame).await.is_err() {
                        break;
                    }
                }
            };
            let answers = async move {
                while let Ok(frame) = receive(&mut server, MAX_ANSWER).await {
                    let (id, answer) = Answer::decode(&frame).unwrap();
                    if id >= OWN {
                        counted.fetch_add(1, Ordering::SeqCst);
                    } else if to_client.write_all(&change(id, answer)).await.is_err() {
                        break;
                    }
                }
            };
            tokio::select! { () = requests => {}, () = sending => {}, () = answers => {} }
        });
        Self { endpoint, lanes_asked, answered, requests, tasks }
    }

    /// Sends the owner a request in the name of the peer, which does not see the answer.
    pub(super) fn ask(&self, request: &Request) {
        self.requests.send(request.encode(OWN)).unwrap();
    }

    /// Hangs up on both.
    pub(super) async fn hang_up(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Passes answers on as they are.
pub(super) fn unchanged() -> Change {
    Box::new(|id, answer| answer.encode(id))
}

pub(super) fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_le_bytes()[..], frame].concat()
}

async fn pass(from: &mut TcpStream, to: &mut TcpStream, len: usize) {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes).await.unwrap();
    to.write_all(&bytes).await.unwrap();
}
