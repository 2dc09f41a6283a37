//! The picture of a run, whose place is tried before anything is measured.

use crate::output::{explained, note};
use sluice_bench::fs::{Line, draw};
use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
};

/// A file that can be written to. One that was not there before goes again, unless there is a picture in it.
pub struct Chart {
    file: PathBuf,
    is_new: bool,
}

impl Chart {
    pub fn try_out(file: &Path) -> anyhow::Result<Self> {
        let is_new = !file.exists();
        // What is there, perhaps another picture, stays until this one is drawn.
        let tried = OpenOptions::new().append(true).create(true).open(file);
        tried.map_err(|error| explained(&format!("making the chart {}", file.display()), &error))?;
        Ok(Self { file: file.into(), is_new })
    }

    pub fn draw(mut self, runs: &[(String, Vec<Line>)]) -> anyhow::Result<()> {
        draw(runs, &self.file)?;
        self.is_new = false;
        note!("the chart is in {}", self.file.display());
        Ok(())
    }
}

impl Drop for Chart {
    fn drop(&mut self) {
        if self.is_new {
            let _ = fs::remove_file(&self.file);
        }
    }
}
