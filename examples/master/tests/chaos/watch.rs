//! Watches who leads, by the masters' own pages, all the time.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mc_history::Window;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::MASTERS;
use crate::cluster::Cluster;

/// Time between two looks at a master.
const INTERVAL: Duration = Duration::from_millis(40);

/// Time limit of one look at a master, which may be frozen.
const PATIENCE: Duration = Duration::from_millis(400);

/// A master that led, and when it was first and last seen to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    pub(crate) master: usize,
    pub(crate) first: Duration,
    pub(crate) last: Duration,
}

#[derive(Default)]
struct Seen {
    terms: BTreeMap<u64, Term>,
    /// The greatest epoch that each master has told, which outlives its restarts.
    epochs: [u64; MASTERS],
    in_sync: usize,
    violations: Vec<String>,
}

/// Looks at every master's `/ha_status` until it is dropped.
pub(crate) struct Watch {
    seen: Arc<Mutex<Seen>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Watch {
    /// Starts to watch the masters. Must be called in a runtime.
    pub(crate) fn start(cluster: &Cluster, began: Instant) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let watch = |master| {
            let ((pages, from), seen) = (cluster.network.pages(master), Arc::clone(&seen));
            tokio::spawn(async move {
                let mut timer = tokio::time::interval(INTERVAL);
                timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    timer.tick().await;
                    let status = tokio::time::timeout(PATIENCE, status(pages, from)).await;
                    if let Ok(Some(status)) = status {
                        seen.lock().unwrap().look(master, &status, began.elapsed());
                    }
                }
            })
        };
        let tasks = (0..MASTERS).map(watch).collect();
        Self { seen, tasks }
    }

    /// The master that was seen leading a moment ago, with the greatest epoch.
    pub(crate) fn leader(&self, now: Duration) -> Option<(u64, usize)> {
        let seen = self.seen.lock().unwrap();
        let (epoch, term) = seen.terms.last_key_value()?;
        (now.saturating_sub(term.last) < 2 * PATIENCE).then_some((*epoch, term.master))
    }

    /// How many masters the leader has last counted as in sync.
    pub(crate) fn in_sync(&self) -> usize {
        self.seen.lock().unwrap().in_sync
    }

    pub(crate) fn terms(&self) -> Vec<Term> {
        self.seen.lock().unwrap().terms.values().copied().collect()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.seen.lock().unwrap().violations.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Seen {
    fn look(&mut self, master: usize, status: &serde_json::Value, now: Duration) {
        let Some(epoch) = status["epoch"].as_u64() else { return };
        if epoch < self.epochs[master] && status["role"] == "leader" {
            self.violations.push(format!("m{master} leads {epoch} after {}", self.epochs[master]));
        }
        self.epochs[master] = self.epochs[master].max(epoch);
        if status["role"] != "leader" {
            return;
        }
        let term = self.terms.entry(epoch).or_insert(Term { master, first: now, last: now });
        term.last = now;
        if term.master != master {
            let what = format!("epoch {epoch} is led by m{} and by m{master}", term.master);
            self.violations.push(what);
        }
        self.in_sync = status["in_sync"].as_array().map_or(0, Vec::len);
    }
}

/// The times whose acknowledged changes a change of leaders may have undone: from `window` before
/// the last sight of one leader to the first of the next.
pub(crate) fn undoable(terms: &[Term], window: Duration) -> Vec<Window> {
    let pairs = terms.windows(2);
    pairs
        .map(|pair| Window {
            from: pair[0].last.saturating_sub(window).into(),
            to: pair[1].first.into(),
        })
        .collect()
}

/// The page of a master, if it is there.
async fn status(pages: SocketAddr, from: Ipv4Addr) -> Option<serde_json::Value> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind((from, 0).into()).ok()?;
    let mut stream = socket.connect(pages).await.ok()?;
    let request = b"GET /ha_status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}
