//! The chain's keys, which may change while the writer runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::audit::{Digest, JournalKeys, SignerMissing};

/// Shared by the journal, which is told of other keys, and its writer, which
/// signs with them from its next group on.
#[derive(Debug)]
pub(super) struct Keyring {
    journal_id: Arc<str>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Keys that the writer has not taken up yet.
    next: Option<JournalKeys>,
    /// Every key that has signed a record, or may have.
    signers: Vec<Digest>,
}

impl Keyring {
    /// Of a journal whose records these have signed, and that signs with `keys`.
    pub(super) fn new(journal_id: Arc<str>, mut signers: Vec<Digest>, keys: &JournalKeys) -> Self {
        add(&mut signers, keys.signer(&journal_id));
        Self { journal_id, state: Mutex::new(State { next: None, signers }) }
    }

    /// Whether every record that is written would verify with these keys alone.
    pub(super) fn check(&self, keys: &JournalKeys) -> Result<(), SignerMissing> {
        keys.cover(&self.lock().signers, &self.journal_id)
    }

    /// Has the writer take up other keys.
    pub(super) fn change(&self, keys: JournalKeys) -> Result<(), SignerMissing> {
        let mut state = self.lock();
        keys.cover(&state.signers, &self.journal_id)?;
        // It may sign from now on, and nobody knows when the writer does.
        add(&mut state.signers, keys.signer(&self.journal_id));
        state.next = Some(keys);
        Ok(())
    }

    /// The keys to take up, once.
    pub(super) fn take(&self) -> Option<JournalKeys> {
        self.lock().next.take()
    }

    /// Forgets every signer that is neither among these nor may sign.
    pub(super) fn keep(&self, signers: impl IntoIterator<Item = Digest>) {
        let mut state = self.lock();
        let mut kept = Vec::new();
        signers.into_iter().for_each(|signer| add(&mut kept, signer));
        if let Some(next) = &state.next {
            add(&mut kept, next.signer(&self.journal_id));
        }
        state.signers = kept;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(signers: &mut Vec<Digest>, signer: Digest) {
    if !signers.contains(&signer) {
        signers.push(signer);
    }
}
