//! `--set a.b.c=value`, for whatever has settings.

use std::str::FromStr as _;

use anyhow::anyhow;

/// Puts the value of `a.b.c=value` into the table. The value is read as TOML, else taken as text.
pub(crate) fn assign(table: &mut toml::Table, assignment: &str) -> anyhow::Result<()> {
    let (key, value) = assignment
        .split_once('=')
        .ok_or_else(|| anyhow!("--set {assignment}: expected KEY=VALUE, such as timeouts.connect=2s"))?;
    let value = toml::Value::from_str(value).unwrap_or_else(|_| toml::Value::String(value.to_owned()));
    let mut at = table;
    let mut parts = key.trim().split('.').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            at.insert(part.to_owned(), value);
            return Ok(());
        }
        at = at
            .entry(part)
            .or_insert_with(|| toml::Value::Table(toml::Table::new()))
            .as_table_mut()
            .ok_or_else(|| anyhow!("--set {assignment}: {part} is not a section"))?;
    }
    Ok(())
}
