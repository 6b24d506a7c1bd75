//! Ten times the input costs at most twelve times the instructions, whatever it holds.
//!
//! Instructions are counted by valgrind, so no clock is asked: a test runs this
//! test binary again under callgrind, which writes the count of every call of
//! [`measured`].

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, hint};

use toolgate::domain::canonical::canonical;
use toolgate::domain::json::{Integers, normalise, parse, to_json};

use super::{MAX_BYTES, shuffle};

/// Bytes of an input, and of one ten times as large.
const SIZES: [usize; 2] = [6_400, 64_000];

/// Set in the process that is counted: the directory of the inputs.
const COUNTED: &str = "TOOLGATE_TEST_COUNTED";

#[test]
fn ten_times_the_input_costs_at_most_twelve_times_the_instructions() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        assert!(env::var_os("CI").is_none(), "valgrind must be installed where CI is set");
        eprintln!("SKIPPED: install valgrind to count instructions");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let inputs: Vec<_> = SHAPES.iter().map(|(_, shape)| SIZES.map(shape)).collect();
    for (index, text) in inputs.iter().flatten().enumerate() {
        fs::write(directory.path().join(index.to_string()), text).unwrap();
    }
    let counts = count(directory.path(), SHAPES.len() * SIZES.len());

    let mut report = String::new();
    let mut most = 0.0_f64;
    for ((name, _), counts) in SHAPES.iter().zip(counts.chunks(SIZES.len())) {
        let factor = counts[1] / counts[0];
        most = most.max(factor);
        writeln!(report, "{factor:5.2} times: {name}, {counts:?} instructions").unwrap();
    }
    println!("{report}");
    assert!(most <= 12.0, "{report}");
}

/// What is counted. Does nothing in an ordinary run.
#[test]
fn counted_process() {
    let Some(directory) = env::var_os(COUNTED).map(PathBuf::from) else { return };
    for index in 0.. {
        let Ok(text) = fs::read(directory.join(index.to_string())) else { return };
        hint::black_box(measured(hint::black_box(&text)));
    }
}

/// Everything that is done with the bytes that a caller sends.
#[inline(never)]
fn measured(text: &[u8]) -> usize {
    match parse(text, MAX_BYTES, Integers::Safe) {
        Ok(value) => {
            let value = normalise(value, true);
            canonical(&value).len() + to_json(&value).len()
        }
        Err(fault) => fault.as_str().len(),
    }
}

/// Instructions of each of so many calls of [`measured`], in order.
fn count(directory: &Path, calls: usize) -> Vec<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=it::json::cost::measured"])
        .arg("--dump-after=it::json::cost::measured")
        .arg(format!("--callgrind-out-file={}/counts", directory.display()))
        .arg(env::current_exe().unwrap())
        .args(["--exact", "json::cost::counted_process", "--test-threads=1"])
        .env(COUNTED, directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (1..=calls)
        .map(|call| {
            let dump = fs::read_to_string(directory.join(format!("counts.{call}"))).unwrap();
            let total = dump.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap();
            total.trim().parse().unwrap()
        })
        .collect()
}

type Shape = fn(usize) -> String;

const SHAPES: &[(&str, Shape)] = &[
    ("members in shuffled order", |size| object(size, 10, |n| format!("{n:06x}"))),
    ("short names in shuffled order", |size| object(size, 8, |n| format!("{n:x}"))),
    ("names that begin alike", |size| object(size, 68, |n| format!("{}{n:06}", "p".repeat(60)))),
    ("long names that end apart", |size| {
        object(size, 1_008, |n| format!("{}{n:06}", "p".repeat(1_000)))
    }),
    ("names of many beginnings", |size| {
        object(size, 120, |n| format!("{:03}{}{n:06}{}", n % 9, "p".repeat(50), "q".repeat(50)))
    }),
    ("names that begin one another", |size| object((2 * size).isqrt(), 1, |n| "p".repeat(n))),
    ("a name twice at the end", |size| {
        let members = object(size, 10, |n| format!("{n:06x}"));
        members.replace('}', ",\"000000\":1}")
    }),
    ("objects of few members", |size| array(size, r#"{"b":1,"a":2,"d":3,"c":4,"f":5,"e":6}"#)),
    ("small arrays", |size| array(size, "[]")),
    ("nested to the limit", |size| array(size, &format!("{}{}", "[".repeat(30), "]".repeat(30)))),
    ("nested without end", |size| "[".repeat(size)),
    ("one long string", |size| format!("\"{}\"", "a".repeat(size))),
    ("escapes", |size| format!("\"{}\"", "\\u0001".repeat(size / 6))),
    ("surrogate pairs", |size| format!("\"{}\"", "\\ud83d\\ude42".repeat(size / 12))),
    ("a string that does not end", |size| format!("\"{}", "\\\\".repeat(size / 2))),
    ("white space", |size| format!("{}1", " ".repeat(size))),
    ("white space to trim", |size| format!("\"{}x\"", "\u{3000}".repeat(size / 3))),
    ("long fractions", |size| format!("0.{}", "3".repeat(size))),
    ("long exponents", |size| format!("1e-{}", "9".repeat(size))),
    ("long integers", |size| "9".repeat(size)),
    ("small integers", |size| array(size, "7")),
    ("doubles", |size| array(size, "1.2345678901234567e-300")),
];

fn array(size: usize, item: &str) -> String {
    format!("[{}]", vec![item; size / (item.len() + 1)].join(","))
}

/// As many members as make `size`, each taking about `each` bytes with its value.
fn object(size: usize, each: usize, name: impl Fn(usize) -> String) -> String {
    let members = (0..size / each).map(|index| format!("\"{}\":1", name(index))).collect();
    format!("{{{}}}", shuffle(members, 1).join(","))
}
