//! What a person is shown has no control or format character but the template's own line breaks,
//! and other shown arguments give another text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolgate::domain::json::object;
use toolgate::domain::prompt::{Prompt, show};

fuzz_target!(|input: (&str, &str, &str)| {
    let (template, one, other) = input;
    // Any template is read or refused.
    let _ = Prompt::parse(template).map(|prompt| prompt.render(&object([("a", one.into())])));

    let prompt = Prompt::parse("Send {/a} to {/b}?").expect("a prompt");
    let render = |a: &str, b: &str| prompt.render(&object([("a", a.into()), ("b", b.into())]));
    let shown = render(one, other);
    assert!(!shown.contains(char::is_control));
    assert_eq!(shown == render(other, one), one == other);
    assert_eq!(show(&one.into()) == show(&other.into()), one == other);
});
