//! What loading refuses: one table of codes.
//!
//! Documentation, tests and messages take a refusal's stable name and its
//! meaning from [`Code::row`].

use std::fmt;

/// Something wrong at one place of a document, before the document has a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// JSON Pointer within the document.
    pub pointer: String,
    /// Which refusal.
    pub code: Code,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub mend: String,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct CodeRow {
    /// The stable name.
    pub name: &'static str,
    /// Whether a contract may answer it with a reason under `exceptions`.
    pub excusable: bool,
    /// What it means, for the documentation.
    pub meaning: &'static str,
}

impl Finding {
    /// A finding at a place.
    #[must_use]
    pub fn new(
        pointer: impl Into<String>,
        code: Code,
        problem: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { pointer: pointer.into(), code, problem: problem.into(), mend: mend.into() }
    }
}

macro_rules! codes {
    ($( $variant:ident = $name:literal, $excusable:literal, $meaning:literal; )+) => {
        /// Which refusal or warning. Stable: programs and tests switch on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $( #[doc = $meaning] $variant, )+
        }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )+ ];

            /// What the table says about this code.
            #[must_use]
            pub const fn row(self) -> CodeRow {
                match self {
                    $( Self::$variant => CodeRow {
                        name: $name,
                        excusable: $excusable,
                        meaning: $meaning,
                    }, )+
                }
            }
        }
    };
}

codes! {
    UnreadableFile = "UNREADABLE_FILE", false, "A file or directory cannot be read.";
    FileTooLarge = "FILE_TOO_LARGE", false, "A file is larger than 1 MiB.";
    TooManyFiles = "TOO_MANY_FILES", false, "The directory holds too many files, or is nested too deep.";
    NoTools = "NO_TOOLS", false, "The policy directory holds no tool: empty, not mounted, or the wrong one.";
    FilesChanging = "FILES_CHANGING", false, "Files changed while they were read, again and again.";
    RestartNeeded = "RESTART_NEEDED", false, "A field changed that cannot change while the gate runs; of a reload only.";
    SignerMissing = "SIGNER_MISSING", false, "An audit key is gone that signed records of the journal; of a reload only.";
    NotDurable = "NOT_DURABLE", false, "The journal cannot record the reload now; of a reload only.";
    NotYaml = "NOT_YAML", false, "A file is not strict YAML: syntax, a name twice, an anchor, an alias, a merge key or a custom tag.";
    NotJson = "NOT_JSON", false, "A schema file is not strict JSON.";
    UnknownKind = "UNKNOWN_KIND", false, "A document is not `toolgate.dev/v1` of kind `Tool`, or `Policy` in `policy.yaml`.";
    UnknownField = "UNKNOWN_FIELD", false, "A field has no meaning here.";
    MissingField = "MISSING_FIELD", false, "A field that must be there is not.";
    WrongType = "WRONG_TYPE", false, "A field holds the wrong kind of value.";
    LimitOutOfBounds = "LIMIT_OUT_OF_BOUNDS", false, "A limit is not positive and finite, or beyond what the gate allows.";
    InvalidValue = "INVALID_VALUE", false, "A field's value has not the form that it needs.";
    InsecureAddress = "INSECURE_ADDRESS", false, "A listener could be reached from other machines.";
    SecretRefused = "SECRET_REFUSED", false, "A secret file is missing, readable by others, short, well known or used twice.";
    KeyRefused = "KEY_REFUSED", false, "An issuer's public keys cannot be used, or are not public, or weak.";
    RecordTooShort = "RECORD_TOO_SHORT", false, "A record would be forgotten while a ticket for its call could still be valid.";
    BadName = "BAD_NAME", false, "A tool's name is outside `[A-Za-z0-9][A-Za-z0-9_.-]{0,127}`.";
    NameTwice = "NAME_TWICE", false, "Two contracts carry one name.";
    UnregisteredUpstream = "UNREGISTERED_UPSTREAM", false, "The process configuration has no upstream of this name.";
    NoConfirmation = "NO_CONFIRMATION", true, "A write runs without a person's confirmation.";
    NotPersistent = "NOT_PERSISTENT", false, "A write without a confirmation needs `persistence: persistent` in the process configuration.";
    RetriesNotDeduplicated = "RETRIES_NOT_DEDUPLICATED", false, "A write is tried again, but its handler does not say that it deduplicates.";
    RetryOnWrite = "RETRY_ON_WRITE", false, "`retry_on` is for reads.";
    PromptInvalid = "PROMPT_INVALID", false, "A confirmation prompt cannot be rendered.";
    PromptIncomplete = "PROMPT_INCOMPLETE", false, "A confirmation prompt leaves out a property without a reason.";
    ExceptionInvalid = "EXCEPTION_INVALID", false, "An exception names a refusal that has none, or gives no reason.";
    ExceptionUnused = "EXCEPTION_UNUSED", false, "An exception excuses nothing.";
    SchemaInvalid = "SCHEMA_INVALID", false, "Not a valid Draft 2020-12 schema.";
    SchemaTooDeep = "SCHEMA_TOO_DEEP", false, "A schema is nested more than 64 levels.";
    SchemaTooLarge = "SCHEMA_TOO_LARGE", false, "A schema with everything it references is too large.";
    UnknownKeyword = "UNKNOWN_KEYWORD", false, "A keyword that Draft 2020-12 does not know, and that would silently check nothing.";
    RefusedKeyword = "REFUSED_KEYWORD", false, "A keyword that would change how references or dialects are read.";
    ReferenceOutside = "REFERENCE_OUTSIDE", false, "A `$ref` leaves the policy directory.";
    ReferenceDangling = "REFERENCE_DANGLING", false, "A `$ref` leads nowhere.";
    ReferenceCircular = "REFERENCE_CIRCULAR", false, "A `$ref` leads back to itself at the same place of the instance.";
    FormatNotAsserted = "FORMAT_NOT_ASSERTED", false, "A `format` that is not checked.";
    PatternNotLinear = "PATTERN_NOT_LINEAR", false, "A pattern that is no regular expression, cannot run in linear time, or is too large.";
    RootNotObject = "ROOT_NOT_OBJECT", false, "The schema of arguments is not of type object.";
    UntypedNode = "UNTYPED_NODE", false, "A place that may hold a value of any type.";
    OpenObject = "OPEN_OBJECT", false, "An object that may hold members that nobody declared.";
    UnboundedString = "UNBOUNDED_STRING", true, "A string without an upper bound.";
    UnboundedArray = "UNBOUNDED_ARRAY", true, "An array without an upper bound.";
    ServerProperty = "SERVER_PROPERTY", true, "A property that belongs to the server, not to the model.";
    GenericExecutor = "GENERIC_EXECUTOR", true, "A tool or a property that would run whatever it is given.";
    ExceptionInForce = "EXCEPTION_IN_FORCE", false, "Warning: an exception answers a refusal.";
    MayExceedAuthorisedBytes = "MAY_EXCEED_AUTHORISED_BYTES", false, "Warning: arguments that fit the schema can be larger than `max_authorised_bytes`.";
}

impl Code {
    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The code of this stable name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }

    /// Whether a contract may answer it with a reason under `exceptions`.
    #[must_use]
    pub const fn is_excusable(self) -> bool {
        self.row().excusable
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
