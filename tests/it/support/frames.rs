//! HTTP/2 as bytes (RFC 9113), for clients that do what no library would.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::watch;
use tokio::time::timeout;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// Nothing here takes longer on a machine that works.
const PATIENCE: Duration = Duration::from_mins(1);

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Header fields as literals without indexing (RFC 7541, section 6.2.2).
pub fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

fn text(block: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 127 {
        block.push(u8::try_from(length).unwrap());
    } else {
        block.push(127);
        length -= 127;
        while length >= 128 {
            block.push(u8::try_from(length % 128).unwrap() | 128);
            length /= 128;
        }
        block.push(u8::try_from(length).unwrap());
    }
    block.extend(text.as_bytes());
}

/// The header fields of a gRPC request.
pub fn request(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let head = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    fields(head.iter().chain(more).copied())
}

/// How a server ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// The error code of its GOAWAY, if it sent one.
    pub goaway: Option<u32>,
}

/// What a client does with what comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// It never reads.
    Unread,
    /// It reads, and goes once it has sent everything.
    Read,
    /// It goes once this many streams have ended, or the server has closed.
    Awaited(usize),
}

/// Connects and sends chunk by chunk, until there are no more or the server has closed.
pub async fn pour(
    address: &str,
    answers: Answers,
    mut chunks: impl Iterator<Item = Vec<u8>>,
) -> Option<Closed> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let (ended, mut streams) = watch::channel(0);
    let reading = (answers != Answers::Unread)
        .then(|| tokio::spawn(async move { read_to_end(&mut reader, &ended).await }));
    let poured = timeout(PATIENCE, async {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        loop {
            // One that blocks has filled every buffer on the way: it is not taken any more.
            match timeout(Duration::from_secs(2), writer.write_all(&bytes)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => break,
            }
            match chunks.next() {
                Some(chunk) => bytes = chunk,
                None => break,
            }
        }
        if let Answers::Awaited(count) = answers {
            // An error means that the server has closed.
            drop(streams.wait_for(|ended| *ended >= count).await);
        }
        drop(writer);
    });
    poured.await.expect("the attack is bounded");
    match reading {
        Some(reading) => timeout(PATIENCE, reading).await.expect("the server closes").unwrap(),
        None => None,
    }
}

/// What the server has said before it closed; `None` where it said no GOAWAY.
async fn read_to_end(reader: &mut OwnedReadHalf, ended: &watch::Sender<usize>) -> Option<Closed> {
    let mut head = [0; 9];
    let mut closed = None;
    while reader.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if reader.read_exact(&mut payload).await.is_err() {
            break;
        }
        if head[3] == RST_STREAM || head[3] == HEADERS && head[4] & END_STREAM != 0 {
            ended.send_modify(|count| *count += 1);
        }
        if head[3] == GOAWAY {
            let code = u32::from_be_bytes(payload[4..8].try_into().unwrap());
            closed = Some(Closed { goaway: Some(code) });
            // Without an error the server waits for a client that would answer.
            if code == 0 {
                break;
            }
        }
    }
    closed
}
