//! `toolgate audit tail` against a gate of its own.
