//! A network that fails on demand, in front of a port.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const CHUNK: usize = 16 * 1024;

/// Passes TCP connections on to an address, until it is told otherwise. Ends when dropped.
pub struct Proxy {
    pub address: SocketAddr,
    rules: watch::Sender<Rules>,
    accepting: JoinHandle<()>,
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the client.
    Up,
    /// From the server.
    Down,
}

/// When to cut a connection, as seen in what its client sends.
#[derive(Clone, Debug)]
pub enum Cut {
    /// These bytes and all after them never arrive.
    Before(Vec<u8>),
    /// They arrive, and the server's answer to them is lost with the connection.
    Unanswered(Vec<u8>),
    /// This many bytes arrive, counted from now in each connection.
    After(usize),
}

#[derive(Clone, Default)]
struct Rules {
    refuse: bool,
    hold_up: bool,
    hold_down: bool,
    delay: Duration,
    cut: Option<Cut>,
    /// How often a [`Cut`] happened.
    happened: usize,
    /// Connections of an earlier generation are over.
    generation: u64,
}

impl Proxy {
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let rules = watch::Sender::new(Rules::default());
        let accepting = tokio::spawn(accept(listener, target, rules.clone()));
        Self { address, rules, accepting }
    }

    /// Everything passes again, what was held first. What was cut stays so.
    pub fn pass(&self) {
        self.rules.send_modify(|rules| {
            let (happened, generation) = (rules.happened, rules.generation);
            *rules = Rules { happened, generation, ..Rules::default() };
        });
    }

    /// Ends every connection.
    pub fn cut(&self) {
        self.rules.send_modify(|rules| rules.generation += 1);
    }

    /// Ends every connection, and each new one at once.
    pub fn refuse(&self) {
        self.rules.send_modify(|rules| rules.refuse = true);
        self.cut();
    }

    /// Holds what goes one way: nothing arrives and nothing fails.
    pub fn hang(&self, way: Way) {
        self.rules.send_modify(|rules| match way {
            Way::Up => rules.hold_up = true,
            Way::Down => rules.hold_down = true,
        });
    }

    /// Every piece takes so long, both ways.
    pub fn slow(&self, delay: Duration) {
        self.rules.send_modify(|rules| rules.delay = delay);
    }

    /// Cuts one connection, the first where this happens.
    pub fn cut_once(&self, cut: Cut) {
        self.rules.send_modify(|rules| rules.cut = Some(cut));
    }

    /// How many connections [`Proxy::cut_once`] has cut.
    pub fn cuts(&self) -> usize {
        self.rules.borrow().happened
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, rules: watch::Sender<Rules>) {
    while let Ok((client, _)) = listener.accept().await {
        if !rules.borrow().refuse {
            tokio::spawn(connection(client, target, rules.clone()));
        }
    }
}

/// Both directions end together.
async fn connection(client: TcpStream, target: SocketAddr, rules: watch::Sender<Rules>) {
    let generation = rules.borrow().generation;
    let mut over = rules.subscribe();
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The next bytes of the server are the answer that is to be lost.
    let unanswered = watch::Sender::new(false);
    tokio::select! {
        () = upwards(from_client, to_server, &rules, &unanswered) => {}
        () = downwards(from_server, to_client, &rules, &unanswered) => {}
        _ = over.wait_for(|rules| rules.generation != generation) => {}
    }
}

async fn upwards(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    rules: &watch::Sender<Rules>,
    unanswered: &watch::Sender<bool>,
) {
    let (mut buffer, mut seen) = (vec![0; CHUNK], Seen::default());
    while let Some(read) = piece(&mut from, &mut buffer).await {
        let mut bytes = &buffer[..read];
        let mut end = false;
        rules.send_if_modified(|rules| {
            let Some(cut) = &rules.cut else {
                seen = Seen::default();
                return false;
            };
            let happens = match cut {
                Cut::Before(marker) | Cut::Unanswered(marker) => seen.marker(bytes, marker),
                Cut::After(most) => seen.more_than(bytes.len(), *most),
            };
            let Some(length) = happens else { return false };
            if let Some(Cut::Unanswered(_)) = rules.cut.take() {
                unanswered.send_replace(true);
            } else {
                (bytes, end) = (&bytes[..length], true);
            }
            rules.happened += 1;
            true
        });
        let held = hold(rules, Way::Up).await;
        if held.is_none() || to.write_all(bytes).await.is_err() || end {
            return;
        }
    }
}

async fn downwards(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    rules: &watch::Sender<Rules>,
    unanswered: &watch::Sender<bool>,
) {
    let mut buffer = vec![0; CHUNK];
    while let Some(read) = piece(&mut from, &mut buffer).await {
        if *unanswered.borrow() || hold(rules, Way::Down).await.is_none() {
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn piece(from: &mut OwnedReadHalf, buffer: &mut [u8]) -> Option<usize> {
    from.read(buffer).await.ok().filter(|read| *read > 0)
}

/// Waits as long as the rules want; None if the proxy is gone.
async fn hold(rules: &watch::Sender<Rules>, way: Way) -> Option<()> {
    let delay = rules.borrow().delay;
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let passes = |rules: &Rules| !match way {
        Way::Up => rules.hold_up,
        Way::Down => rules.hold_down,
    };
    rules.subscribe().wait_for(passes).await.ok().map(drop)
}

/// What of a cut's condition came with earlier pieces.
#[derive(Default)]
struct Seen {
    bytes: usize,
    /// The end of what came, shorter than the marker.
    tail: Vec<u8>,
}

impl Seen {
    /// Where the marker begins in these bytes, 0 where it began before them.
    fn marker(&mut self, bytes: &[u8], marker: &[u8]) -> Option<usize> {
        let before = self.tail.len();
        self.tail.extend_from_slice(bytes);
        let found = self.tail.windows(marker.len()).position(|window| window == marker);
        let keep = self.tail.len().min(marker.len() - 1);
        self.tail.drain(..self.tail.len() - keep);
        found.map(|place| place.saturating_sub(before))
    }

    fn more_than(&mut self, more: usize, most: usize) -> Option<usize> {
        let before = self.bytes;
        self.bytes += more;
        (self.bytes > most).then(|| most - before)
    }
}
