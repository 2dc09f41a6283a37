//! A program that is started while its files are brought, and the order in which it opens them.

use super::paths::Named;
use crate::{
    control::{Ask, Told},
    output::note,
};
use anyhow::{Context, anyhow};
use std::{
    ffi::OsString,
    fs,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, ExitCode},
};

fn command(words: &[OsString]) -> anyhow::Result<Command> {
    let (program, args) = words.split_first().ok_or_else(|| anyhow!("no COMMAND behind --"))?;
    let mut command = Command::new(program);
    command.args(args);
    Ok(command)
}

/// This process becomes the program.
pub fn become_it(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let error = command(words)?.exec();
    Err(error).with_context(|| format!("starting {}", words[0].to_string_lossy()))
}

/// Runs the program, and writes the order to `file`.
pub fn learn(named: &Named, file: &Path, words: &[OsString]) -> anyhow::Result<ExitCode> {
    let mut control = named.control()?;
    control.ask_about(Ask::Learn, named.within(|_| {}), |told| Ok(!matches!(told, Told::Learning)))?;
    let started = command(words)?.status();
    let status = started.with_context(|| format!("starting {}", words[0].to_string_lossy()))?;
    control.finish()?;
    let (mut list, mut files) = (String::new(), 0);
    control.hear(|told| {
        if let Told::Opened { path } = told {
            files += 1;
            list.push_str(&format!("{}\n", named.mount.at.join(path).display()));
        }
        Ok(true)
    })?;
    fs::write(file, list).with_context(|| format!("writing {}", file.display()))?;
    note!("{} has the {files} files in the order in which they were opened", file.display());
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
