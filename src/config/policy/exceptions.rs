//! Refusals that a contract answers with a reason.

use super::compile::Scene;
use crate::config::fault::Fault;
use crate::config::fields::Fields;
use crate::domain::contract::Exception;
use crate::domain::refusal::{Code, Finding};

/// The exceptions of one contract, and which of them were needed.
pub(super) struct Excuses {
    listed: Vec<Excuse>,
}

struct Excuse {
    exception: Exception,
    pointer: String,
    is_used: bool,
}

impl Excuses {
    pub(super) fn read(scene: &Scene<'_>, fields: &Fields<'_>, faults: &mut Vec<Fault>) -> Self {
        let mut findings = Vec::new();
        let mut listed = Vec::new();
        for (pointer, item) in fields.list("exceptions", &mut findings) {
            if let Some(exception) = exception(item, &pointer, &mut findings) {
                listed.push(Excuse { exception, pointer, is_used: false });
            }
        }
        faults.extend(findings.into_iter().map(|finding| Fault::new(scene.label, finding)));
        Self { listed }
    }

    /// The fault, unless an exception answers it. Says how it could be answered.
    pub(super) fn answer(&mut self, mut fault: Fault, label: &str) -> Option<Fault> {
        if !fault.code.is_excusable() {
            return Some(fault);
        }
        let place = place(&fault, label);
        let mut is_answered = false;
        for excuse in &mut self.listed {
            if excuse.exception.code == fault.code.name() && excuse.exception.at == place {
                excuse.is_used = true;
                is_answered = true;
            }
        }
        if is_answered {
            return None;
        }
        fault.mend = format!(
            "{}; or give a reason under exceptions: {{code: {}, at: {place}, reason: …}}",
            fault.mend, fault.code
        );
        Some(fault)
    }

    /// Faults exceptions that answered nothing, and tells of the others. Where a
    /// schema could not be had, nobody knows what an exception would have answered.
    pub(super) fn close(
        &self,
        scene: &Scene<'_>,
        is_complete: bool,
        faults: &mut Vec<Fault>,
        warnings: &mut Vec<Fault>,
    ) {
        for excuse in &self.listed {
            let Exception { code, at, reason } = &excuse.exception;
            let tell = |code, problem, mend| {
                Fault::new(scene.label, Finding::new(excuse.pointer.as_str(), code, problem, mend))
            };
            if excuse.is_used {
                let problem = format!("{code} at {at} is accepted: {reason}");
                warnings.push(tell(
                    Code::ExceptionInForce,
                    problem,
                    "remove it once it is not needed",
                ));
                if code == Code::NoConfirmation.name() && !scene.surroundings.persistent {
                    let problem =
                        "a write without a confirmation needs a ledger that stays".to_owned();
                    let mend = "write persistence: persistent in the process configuration";
                    faults.push(tell(Code::NotPersistent, problem, mend));
                }
            } else if is_complete {
                let problem = format!("there is no {code} at {at} to answer");
                faults.push(tell(
                    Code::ExceptionUnused,
                    problem,
                    "remove it, or correct code and at",
                ));
            }
        }
    }

    pub(super) fn into_exceptions(self) -> Vec<Exception> {
        self.listed.into_iter().map(|excuse| excuse.exception).collect()
    }
}

fn exception(
    item: &serde_json::Value,
    pointer: &str,
    findings: &mut Vec<Finding>,
) -> Option<Exception> {
    let fields = Fields::of(item, pointer, &["code", "at", "reason"], findings)?;
    let code = fields.required_text("code", findings);
    let at = fields.required_text("at", findings);
    let reason = fields.required_text("reason", findings);
    let code = code?;
    if !Code::from_name(code).is_some_and(Code::is_excusable) {
        let excusable: Vec<&str> =
            Code::ALL.iter().filter(|code| code.is_excusable()).map(|code| code.name()).collect();
        findings.push(Finding::new(
            fields.at("code"),
            Code::ExceptionInvalid,
            format!("{code:?} is no refusal that a reason can answer"),
            format!("use one of {}", excusable.join(", ")),
        ));
        return None;
    }
    Some(Exception { code: code.to_owned(), at: at?.to_owned(), reason: reason?.to_owned() })
}

/// How an exception names the place of a fault.
fn place(fault: &Fault, label: &str) -> String {
    if fault.file == label {
        fault.pointer.clone()
    } else {
        format!("{}#{}", fault.file, fault.pointer)
    }
}
