//! The form of the database, and how it comes to the one that this version needs.
//!
//! Forms are numbered. A migration says which older gates may still use what it
//! makes, so that replicas can be replaced one by one: migrate first, then roll
//! out. A gate starts on a form that is at least its own and still usable by it.

use tokio_postgres::{Client, Error};

/// The form that this version needs.
pub(super) const FORM: i32 = 1;

/// One step from a form to the next.
struct Migration {
    /// The form that it makes.
    version: i32,
    /// The oldest form whose gates may still use that.
    usable_from: i32,
    sql: &'static str,
}

/// All steps, in order.
const MIGRATIONS: &[Migration] =
    &[Migration { version: 1, usable_from: 1, sql: include_str!("migrations/0001.sql") }];

/// What form a database has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) version: i32,
    pub(super) usable_from: i32,
}

/// What stands between this version and a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormFault {
    /// It holds no ledger yet.
    None,
    /// It is older than this version needs.
    Older(i32),
    /// Newer gates have left it in a form that this version cannot use.
    Newer(i32),
}

impl Form {
    /// Whether gates of this version may use it.
    pub(super) const fn check(found: Option<Self>) -> Result<(), FormFault> {
        match found {
            None => Err(FormFault::None),
            Some(Self { version, .. }) if version < FORM => Err(FormFault::Older(version)),
            Some(Self { version, usable_from }) if usable_from > FORM => {
                Err(FormFault::Newer(version))
            }
            Some(_) => Ok(()),
        }
    }

    /// Reads it; `None` where there is no ledger.
    pub(super) async fn read(client: &Client) -> Result<Option<Self>, Error> {
        let there = "SELECT to_regclass('toolgate.versions') IS NOT NULL";
        if !client.query_one_scalar::<bool, _>(there, &[]).await? {
            return Ok(None);
        }
        let newest =
            "SELECT version, usable_from FROM toolgate.versions ORDER BY version DESC LIMIT 1";
        let row = client.query_opt(newest, &[]).await?;
        row.map(|row| Ok(Self { version: row.try_get(0)?, usable_from: row.try_get(1)? }))
            .transpose()
    }
}

/// The statements of the steps after a form.
pub(super) fn script(from: Option<Form>) -> String {
    let from = from.map_or(0, |form| form.version);
    let steps = MIGRATIONS.iter().filter(|step| step.version > from);
    let step = |step: &Migration| {
        format!(
            "{}\nINSERT INTO toolgate.versions (version, usable_from) VALUES ({}, {});\n",
            step.sql, step.version, step.usable_from
        )
    };
    steps.map(step).collect()
}

/// Brings a database to the form that this version needs, in one transaction. A
/// newer one is left as it is. Two at a time wait for each other.
pub(super) async fn migrate(client: &mut Client) -> Result<(Option<Form>, Option<Form>), Error> {
    let transaction = client.transaction().await?;
    transaction.query("SELECT pg_advisory_xact_lock($1, 0)", &[&MIGRATING]).await?;
    let before = Form::read(transaction.client()).await?;
    transaction.batch_execute(&script(before)).await?;
    let after = Form::read(transaction.client()).await?;
    transaction.commit().await?;
    Ok((before, after))
}

/// The class of the advisory lock that migrations take: "tgm\0".
const MIGRATING: i32 = 0x7467_6d00;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_uses_its_own_form_and_newer_ones_that_let_it() {
        let form = |version, usable_from| Some(Form { version, usable_from });
        for (found, wanted) in [
            (None, Err(FormFault::None)),
            (form(FORM - 1, 1), Err(FormFault::Older(FORM - 1))),
            (form(FORM, FORM), Ok(())),
            (form(FORM + 1, FORM), Ok(())),
            (form(FORM + 2, FORM + 1), Err(FormFault::Newer(FORM + 2))),
        ] {
            assert_eq!(Form::check(found), wanted, "{found:?}");
        }
    }

    #[test]
    fn migrations_are_numbered_and_end_at_the_form_of_this_version() {
        for (index, step) in MIGRATIONS.iter().enumerate() {
            assert_eq!(usize::try_from(step.version), Ok(index + 1));
            assert!(step.usable_from <= step.version);
        }
        assert_eq!(MIGRATIONS.last().map(|step| step.version), Some(FORM));
        assert_eq!(script(Some(Form { version: FORM, usable_from: 1 })), "");
    }
}
