//! Places where a test may end the process, as a crash there would.
//!
//! Only builds with the feature `failpoints` have them: without it
//! [`failpoint!`](crate::failpoint) is nothing, its names included. With it,
//! `TOOLGATE_FAILPOINT=name[:nth]` names the one that acts, and from which time
//! on it is reached, counted from 1. Nothing is flushed, no destructor runs:
//! for what is on the disk it is the same as kill -9.

/// `failpoint!("name")` ends the process there, if that is the place the
/// environment names. `failpoint!(hold "name", if condition)` waits there for
/// ever instead, so that something that runs beside it reaches `"name"` first.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "failpoints")]
        $crate::failpoint::reach($name);
    };
    ($name:literal, if $condition:expr) => {
        #[cfg(feature = "failpoints")]
        if $condition {
            $crate::failpoint::reach($name);
        }
    };
    (hold $name:literal, if $condition:expr) => {
        #[cfg(feature = "failpoints")]
        if $crate::failpoint::is_named($name) && $condition {
            std::future::pending::<()>().await;
        }
    };
}

pub(crate) use failpoint;

#[cfg(feature = "failpoints")]
pub(crate) use armed::{is_named, reach};

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The place that acts, and how often it is passed before.
    struct Named {
        name: String,
        nth: u32,
        reached: AtomicU32,
    }

    static NAMED: OnceLock<Option<Named>> = OnceLock::new();

    /// Ends the process, if this is the place and the time.
    pub(crate) fn reach(name: &str) {
        let Some(named) = named().filter(|named| named.name == name) else { return };
        if named.reached.fetch_add(1, Ordering::SeqCst) + 1 >= named.nth {
            std::process::abort();
        }
    }

    /// Whether this is the place that acts.
    pub(crate) fn is_named(name: &str) -> bool {
        named().is_some_and(|named| named.name == name)
    }

    fn named() -> Option<&'static Named> {
        let read = || {
            let text = std::env::var("TOOLGATE_FAILPOINT").ok()?;
            let (name, nth) = text.split_once(':').unwrap_or((&text, "1"));
            let nth = nth.parse().ok()?;
            Some(Named { name: name.to_owned(), nth, reached: AtomicU32::new(0) })
        };
        NAMED.get_or_init(read).as_ref()
    }
}
