//! Runs that were saved with --json.

use anyhow::{Context, bail};
use sluice_bench::fs::Line;
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

const RUNS_MAX: usize = 16;
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The runs of the files, each directory's apart.
pub fn read(files: &[PathBuf]) -> anyhow::Result<Vec<(String, Vec<Line>)>> {
    let mut runs = Vec::new();
    for file in files {
        let lines = lines(file).with_context(|| format!("{} is no run saved with --json", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        runs.extend(by_dir(Some(&name), lines));
    }
    if runs.len() > RUNS_MAX {
        bail!("--compare takes {RUNS_MAX} runs, of a directory each, and these are {}", runs.len());
    }
    Ok(runs)
}

/// The lines of each directory, named by it, and by the file if there is one.
pub fn by_dir(file: Option<&str>, lines: Vec<Line>) -> Vec<(String, Vec<Line>)> {
    let mut runs: Vec<(String, Vec<Line>)> = Vec::new();
    for line in lines {
        match runs.iter_mut().find(|(dir, _)| *dir == line.dir) {
            Some((_, lines)) => lines.push(line),
            None => runs.push((line.dir.clone(), vec![line])),
        }
    }
    let is_alone = runs.len() == 1;
    let name = |dir: String| match file {
        Some(file) if is_alone => file.to_owned(),
        Some(file) => format!("{file}: {dir}"),
        None => dir,
    };
    runs.into_iter().map(|(dir, lines)| (name(dir), lines)).collect()
}

fn lines(file: &Path) -> anyhow::Result<Vec<Line>> {
    let mut text = String::new();
    File::open(file)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        bail!("more than {FILE_BYTES_MAX} bytes");
    }
    let lines = text.lines().filter(|line| !line.is_empty()).map(serde_json::from_str);
    let lines: Vec<Line> = lines.collect::<Result<_, _>>()?;
    if lines.is_empty() {
        bail!("nothing is in it");
    }
    Ok(lines)
}
