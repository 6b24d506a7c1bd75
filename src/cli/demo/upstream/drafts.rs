//! Support drafts: the sample's one effect, written to files, once for each idempotency key.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;

use serde::Serialize;

/// Where drafts are written, one file each.
#[derive(Debug, Clone)]
pub(super) struct Drafts {
    directory: PathBuf,
}

/// A draft as it is kept.
#[derive(Serialize)]
pub(super) struct Draft<'a> {
    pub(super) tenant_id: &'a str,
    pub(super) user_id: &'a str,
    pub(super) conversation_id: &'a str,
    pub(super) question: &'a str,
}

impl Drafts {
    pub(super) const fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Writes a draft, unless this key has one already; its id either way.
    ///
    /// The file's name is the key, and it appears whole or not at all, so that two
    /// attempts at one time make one draft.
    pub(super) fn write_once(&self, key: &str, draft: &Draft<'_>) -> io::Result<String> {
        if key.len() != 64 || !key.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        fs::create_dir_all(&self.directory)?;
        let path = self.directory.join(format!("{key}.json"));
        let unfinished = self.directory.join(format!("{key}.{}", uuid::Uuid::new_v4()));
        let mut file = OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
        file.write_all(&serde_json::to_vec(draft)?)?;
        file.sync_all()?;
        // Unlike a rename, a link never replaces what is there.
        let linked = fs::hard_link(&unfinished, &path);
        fs::remove_file(&unfinished)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(format!("draft-{}", &key[..12])),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn one_key_makes_one_draft() {
        let directory = tempfile::tempdir().unwrap();
        let drafts = Drafts::new(directory.path().join("drafts"));
        let draft =
            |question| Draft { tenant_id: "t", user_id: "u", conversation_id: "c", question };
        let (one, other) = ("1".repeat(64), "2".repeat(64));
        let id = drafts.write_once(&one, &draft("first")).unwrap();
        assert_eq!(drafts.write_once(&one, &draft("again")).unwrap(), id);
        assert_ne!(drafts.write_once(&other, &draft("first")).unwrap(), id);
        let files: Vec<_> = fs::read_dir(directory.path().join("drafts")).unwrap().collect();
        assert_eq!(files.len(), 2);
        let kept = fs::read_to_string(directory.path().join(format!("drafts/{one}.json"))).unwrap();
        assert!(kept.contains("first") && !kept.contains("again"));
        assert!(drafts.write_once("../escape", &draft("x")).is_err());
    }
}
