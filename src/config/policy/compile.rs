//! One document into one contract, or into everything that is wrong with it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Surroundings;
use super::exceptions::Excuses;
use super::prompt;
use super::references::{Bundle, SchemaFiles, Start};
use crate::config::fault::Fault;
use crate::config::fields::{Fields, show, text_of, wrong_type};
use crate::domain::audit::{Digest, Event, fold_case, is_tool_name};
use crate::domain::contract::{Contract, ContractLimits, ToolEffect};
use crate::domain::policy::PolicyLimits;
use crate::domain::refusal::{Code, Finding};
use crate::domain::schema::{Schema, is_generic_executor, vet_arguments};

/// The version of the format.
pub const API_VERSION: &str = "toolgate.dev/v1";

const TOOL_FIELDS: [&str; 15] = [
    "apiVersion",
    "kind",
    "name",
    "description",
    "effect",
    "upstream",
    "arguments_schema",
    "result_schema",
    "limits",
    "retry_on",
    "trim_strings",
    "handler_deduplicates",
    "confirmation",
    "redact",
    "exceptions",
];

const MAX_ARGUMENT_BYTES: u64 = 1024 * 1024;
const MAX_RESULT_BYTES: u64 = 16 * 1024 * 1024;
const MAX_AUTHORISED_BYTES: u64 = 64 * 1024;
const MAX_ATTEMPTS: u64 = 100;
const MAX_STEPS: u64 = 100;
const MAX_BATCH: Duration = Duration::from_mins(10);
const MAX_RECORD_KEPT: Duration = Duration::from_hours(24 * 366);
const MILLISECOND: Duration = Duration::from_millis(1);

/// Where a document stands, and what it is compiled beside.
pub(super) struct Scene<'a> {
    /// The file.
    pub(super) file: &'a str,
    /// How faults name the document.
    pub(super) label: &'a str,
    pub(super) schemas: &'a SchemaFiles<'a>,
    pub(super) surroundings: &'a Surroundings,
}

/// Compiles a document of kind `Tool`. Faults and warnings go where they are told.
pub(super) fn contract(
    scene: &Scene<'_>,
    document: &Value,
    faults: &mut Vec<Fault>,
    warnings: &mut Vec<Fault>,
) -> Option<Contract> {
    let mut findings = Vec::new();
    let draft = draft(scene, document, &mut findings, faults);
    let Some((draft, mut excuses)) = draft else {
        faults.extend(findings.into_iter().map(|finding| Fault::new(scene.label, finding)));
        return None;
    };
    check_meaning(scene, &draft, &mut findings);
    faults.extend(
        findings
            .into_iter()
            .filter_map(|finding| excuses.answer(Fault::new(scene.label, finding), scene.label)),
    );
    let arguments = schema(scene, "arguments_schema", draft.arguments, faults, &mut excuses, true);
    let result = draft
        .result
        .map(|value| schema(scene, "result_schema", value, faults, &mut excuses, false));
    let mut confirmation = None;
    if let (Some(draft), Some(schema)) = (&draft.confirmation, &arguments) {
        match prompt::compile(draft, schema, "/confirmation") {
            Ok(compiled) => confirmation = Some(compiled),
            Err(found) => {
                faults.extend(found.into_iter().map(|finding| Fault::new(scene.label, finding)));
            }
        }
    }
    let is_complete = arguments.is_some() && !matches!(result, Some(None));
    excuses.close(scene, is_complete, faults, warnings);
    let contract = Contract {
        name: Arc::from(draft.name?),
        description: draft.description?.to_owned(),
        effect: draft.effect?,
        arguments_schema: arguments?,
        result_schema: match result {
            Some(result) => Some(result?),
            None => None,
        },
        upstream: Arc::from(draft.upstream?),
        limits: draft.limits,
        retry_unavailable: draft.retry_unavailable,
        trim_strings: draft.trim_strings,
        confirmation: match draft.confirmation {
            Some(_) => Some(confirmation?),
            None => None,
        },
        handler_deduplicates: draft.handler_deduplicates,
        exceptions: excuses.into_exceptions(),
        redact: draft.redact,
        digest: Digest([0; 32]),
    };
    warn_of_size(scene, &contract, warnings);
    Some(contract.seal())
}

/// What a document says, before any of it was checked beside the rest.
struct Draft<'a> {
    name: Option<&'a str>,
    description: Option<&'a str>,
    effect: Option<ToolEffect>,
    upstream: Option<&'a str>,
    arguments: &'a Value,
    result: Option<&'a Value>,
    limits: ContractLimits,
    retry_unavailable: bool,
    trim_strings: bool,
    handler_deduplicates: bool,
    confirmation: Option<prompt::Draft<'a>>,
    redact: Vec<String>,
}

fn draft<'a>(
    scene: &Scene<'_>,
    document: &'a Value,
    findings: &mut Vec<Finding>,
    faults: &mut Vec<Fault>,
) -> Option<(Draft<'a>, Excuses)> {
    let fields = Fields::of(document, "", &TOOL_FIELDS, findings)?;
    let excuses = Excuses::read(scene, &fields, faults);
    let effects = [("read", ToolEffect::Read), ("write", ToolEffect::Write)];
    fields.required("effect", findings);
    let draft = Draft {
        name: fields.required_text("name", findings),
        description: fields.required_text("description", findings),
        effect: fields.word("effect", &effects, findings),
        upstream: fields.required_text("upstream", findings),
        arguments: fields.required("arguments_schema", findings).unwrap_or(&Value::Null),
        result: fields.get("result_schema"),
        limits: limits(&fields, findings),
        retry_unavailable: retry_unavailable(&fields, findings),
        trim_strings: fields.boolean("trim_strings", true, findings),
        handler_deduplicates: fields.boolean("handler_deduplicates", false, findings),
        confirmation: confirmation(&fields, findings),
        redact: redact(&fields, findings),
    };
    Some((draft, excuses))
}

fn limits(fields: &Fields<'_>, findings: &mut Vec<Finding>) -> ContractLimits {
    let default = ContractLimits::default();
    let known = [
        "attempt_timeout",
        "max_attempts",
        "max_argument_bytes",
        "max_result_bytes",
        "max_authorised_bytes",
        "record_kept",
    ];
    let Some(limits) = nested(fields, "limits", &known, findings) else { return default };
    let mut bytes = |name, default: usize, most| {
        let default = u64::try_from(default).unwrap_or(most);
        usize::try_from(limits.number(name, default, 1..=most, findings)).unwrap_or(usize::MAX)
    };
    let max_argument_bytes =
        bytes("max_argument_bytes", default.max_argument_bytes, MAX_ARGUMENT_BYTES);
    let max_result_bytes = bytes("max_result_bytes", default.max_result_bytes, MAX_RESULT_BYTES);
    let max_authorised_bytes =
        bytes("max_authorised_bytes", default.max_authorised_bytes, MAX_AUTHORISED_BYTES);
    let attempts = limits.number("max_attempts", 1, 1..=MAX_ATTEMPTS, findings);
    let timeout = MILLISECOND..=MAX_BATCH;
    let kept = Duration::from_secs(1)..=MAX_RECORD_KEPT;
    ContractLimits {
        attempt_timeout: limits.duration(
            "attempt_timeout",
            default.attempt_timeout,
            timeout,
            findings,
        ),
        max_attempts: u32::try_from(attempts).unwrap_or(1),
        max_argument_bytes,
        max_result_bytes,
        max_authorised_bytes,
        record_kept: limits.duration("record_kept", default.record_kept, kept, findings),
    }
}

fn nested<'a>(
    fields: &Fields<'a>,
    name: &str,
    known: &[&str],
    findings: &mut Vec<Finding>,
) -> Option<Fields<'a>> {
    Fields::of(fields.get(name)?, &fields.at(name), known, findings)
}

fn retry_unavailable(fields: &Fields<'_>, findings: &mut Vec<Finding>) -> bool {
    let mut is_asked = false;
    for (pointer, item) in fields.list("retry_on", findings) {
        if item == "unavailable" {
            is_asked = true;
        } else {
            findings.push(wrong_type(
                &pointer,
                "\"unavailable\"",
                "write retry_on: [unavailable], or remove it",
            ));
        }
    }
    is_asked
}

fn confirmation<'a>(fields: &Fields<'a>, findings: &mut Vec<Finding>) -> Option<prompt::Draft<'a>> {
    let known = ["prompt", "not_shown", "confirm_by"];
    let confirmation = nested(fields, "confirmation", &known, findings)?;
    let not_shown = confirmation.texts("not_shown", findings);
    let confirm_by = confirmation.text("confirm_by", findings);
    let prompt = confirmation.required_text("prompt", findings)?;
    Some(prompt::Draft { prompt, not_shown, confirm_by })
}

fn redact(fields: &Fields<'_>, findings: &mut Vec<Finding>) -> Vec<String> {
    let mut names: Vec<String> = fields
        .list("redact", findings)
        .into_iter()
        .filter_map(|(pointer, item)| text_of(item, &pointer, findings))
        .map(fold_case)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What the fields say about each other and about the process.
fn check_meaning(scene: &Scene<'_>, draft: &Draft<'_>, findings: &mut Vec<Finding>) {
    let mut refuse = |pointer: &str, code, problem: String, mend: &str| {
        findings.push(Finding::new(pointer, code, problem, mend));
    };
    if let Some(name) = draft.name {
        if !is_tool_name(name) {
            let problem = format!("{name:?} is no name for a tool");
            let mend = "use 1 to 128 of A-Z a-z 0-9 _ . - and start with a letter or digit";
            refuse("/name", Code::BadName, problem, mend);
        }
        if name == Event::UNKNOWN_TOOL {
            let problem = format!("{name:?} stands for names that are not registered");
            refuse("/name", Code::BadName, problem, "choose another name");
        }
        if is_generic_executor(name) {
            let problem = format!("a tool called {name:?} would run whatever it is given");
            let mend = "replace it by tools that each do one thing";
            refuse("/name", Code::GenericExecutor, problem, mend);
        }
    }
    if let Some(upstream) = draft.upstream
        && !scene.surroundings.upstreams.contains(upstream)
    {
        let problem = format!("the configuration registers no upstream {upstream:?}");
        let mend = "add it under upstreams in the process configuration, or correct the name";
        refuse("/upstream", Code::UnregisteredUpstream, problem, mend);
    }
    let shortest = scene.surroundings.shortest_record();
    if draft.limits.record_kept < shortest {
        let problem = format!(
            "a record is forgotten after {}, while its ticket may still be used for {}",
            show(draft.limits.record_kept),
            show(shortest)
        );
        let mend = format!("write record_kept: {}, or more", show(shortest));
        refuse("/limits/record_kept", Code::RecordTooShort, problem, &mend);
    }
    if draft.effect == Some(ToolEffect::Write) {
        check_write(draft, &mut refuse);
    }
}

fn check_write(draft: &Draft<'_>, refuse: &mut impl FnMut(&str, Code, String, &str)) {
    if draft.confirmation.is_none() {
        let problem = "a write runs without a person's confirmation".to_owned();
        let mend = "add confirmation: {prompt: …}";
        refuse("/effect", Code::NoConfirmation, problem, mend);
    }
    if draft.limits.max_attempts > 1 && !draft.handler_deduplicates {
        let problem = "a write is tried more than once".to_owned();
        let mend = "write max_attempts: 1, or, if the handler applies one idempotency key once, \
                    handler_deduplicates: true";
        refuse("/limits/max_attempts", Code::RetriesNotDeduplicated, problem, mend);
    }
    if draft.retry_unavailable {
        let problem = "a write is tried again when its upstream was unavailable".to_owned();
        refuse("/retry_on", Code::RetryOnWrite, problem, "remove it; it is for reads");
    }
}

/// Gathers, compiles and, for arguments, vets a schema.
fn schema(
    scene: &Scene<'_>,
    field: &str,
    value: &Value,
    faults: &mut Vec<Fault>,
    excuses: &mut Excuses,
    is_arguments: bool,
) -> Option<Schema> {
    if value.is_null() {
        return None;
    }
    let start = Start { file: scene.file, label: scene.label, pointer: format!("/{field}"), value };
    let bundle = scene.schemas.bundle(&start, faults)?;
    let vetted = if is_arguments { vet_arguments(&bundle.document) } else { Vec::new() };
    let compiled = Schema::compile(bundle.document.clone());
    let (schema, invalid) = match compiled {
        Ok(schema) => (Some(schema), Vec::new()),
        Err(findings) => (None, findings),
    };
    let located = invalid.into_iter().chain(vetted).map(|finding| locate(&bundle, finding));
    faults.extend(located.filter_map(|fault| excuses.answer(fault, scene.label)));
    schema.filter(|_| bundle.is_whole)
}

fn locate(bundle: &Bundle, finding: Finding) -> Fault {
    let (file, pointer) = bundle.origin(&finding.pointer);
    Fault::new(&file, Finding { pointer, ..finding })
}

fn warn_of_size(scene: &Scene<'_>, contract: &Contract, warnings: &mut Vec<Fault>) {
    if !contract.needs_record() {
        return;
    }
    let limit = contract.limits.max_authorised_bytes;
    let most = contract.arguments_schema.max_canonical_bytes();
    if most.is_none_or(|most| usize::try_from(most).is_ok_and(|most| most > limit)) {
        let finding = Finding::new(
            "/limits/max_authorised_bytes",
            Code::MayExceedAuthorisedBytes,
            format!("arguments that fit the schema can have more than {limit} canonical bytes"),
            "shorten the schema's bounds, or raise max_authorised_bytes up to 65536",
        );
        warnings.push(Fault::new(scene.label, finding));
    }
}

/// Compiles a document of kind `Policy`.
pub(super) fn policy_limits(document: &Value, findings: &mut Vec<Finding>) -> PolicyLimits {
    let default = PolicyLimits::default();
    let known = ["apiVersion", "kind", "limits"];
    let Some(fields) = Fields::of(document, "", &known, findings) else { return default };
    let known = ["max_steps", "batch_total", "min_attempt"];
    let Some(limits) = nested(&fields, "limits", &known, findings) else { return default };
    let steps = u64::try_from(default.max_steps).unwrap_or(1);
    let steps = limits.number("max_steps", steps, 1..=MAX_STEPS, findings);
    let bounds = MILLISECOND..=MAX_BATCH;
    let policy = PolicyLimits {
        max_steps: usize::try_from(steps).unwrap_or(1),
        batch_total: limits.duration("batch_total", default.batch_total, bounds.clone(), findings),
        min_attempt: limits.duration("min_attempt", default.min_attempt, bounds, findings),
    };
    if policy.min_attempt >= policy.batch_total {
        findings.push(Finding::new(
            limits.at("min_attempt"),
            Code::LimitOutOfBounds,
            "no attempt could ever start: min_attempt is not shorter than batch_total",
            "write a min_attempt that is shorter than batch_total",
        ));
    }
    policy
}
