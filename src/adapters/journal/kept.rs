//! What is known of the segments that are kept, without reading them.

use jiff::Timestamp;

use crate::domain::audit::{Digest, Entry, Head};

/// The records between two places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Span {
    /// The earliest and the latest time among their events; `None` without one.
    pub(super) times: Option<(Timestamp, Timestamp)>,
    /// Who signed them, each once.
    pub(super) signers: Vec<Digest>,
}

/// One segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    /// Its first sequence, which is its name.
    pub(super) first: u64,
    /// The link that its first record continues; `None` for sequence 1, where it
    /// depends on the key that signs.
    pub(super) previous: Option<Digest>,
    /// The bytes of its records.
    pub(super) bytes: u64,
    /// Its records.
    pub(super) span: Span,
}

impl Span {
    /// Takes one more record in.
    pub(super) fn add(&mut self, entry: &Entry, signer: Option<Digest>) {
        let time = match entry {
            Entry::Call(event) => event.time,
            Entry::Admin(event) => event.time,
        };
        self.reach((time, time));
        if let Some(signer) = signer {
            self.sign(signer);
        }
    }

    /// Takes all records of another span in.
    pub(super) fn join(&mut self, other: &Self) {
        if let Some(times) = other.times {
            self.reach(times);
        }
        for signer in &other.signers {
            self.sign(*signer);
        }
    }

    /// The latest time among the events.
    pub(super) fn newest(&self) -> Option<Timestamp> {
        self.times.map(|(_, newest)| newest)
    }

    fn reach(&mut self, (from, to): (Timestamp, Timestamp)) {
        let (earliest, latest) = self.times.unwrap_or((from, to));
        self.times = Some((earliest.min(from), latest.max(to)));
    }

    fn sign(&mut self, signer: Digest) {
        if !self.signers.contains(&signer) {
            self.signers.push(signer);
        }
    }
}

impl Kept {
    /// An empty segment after a record.
    pub(super) fn after(head: Head) -> Self {
        let previous = (head.sequence > 0).then_some(head.mac);
        Self { first: head.sequence + 1, previous, bytes: 0, span: Span::default() }
    }
}

/// Everything in a row of segments.
pub(super) fn span_of(kept: &[Kept]) -> Span {
    let mut whole = Span::default();
    for segment in kept {
        whole.join(&segment.span);
    }
    whole
}
