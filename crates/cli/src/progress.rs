//! How far something long is.

use crate::output::note;
use indicatif::ProgressBar;
use std::io::IsTerminal;

/// A moving line on a terminal; elsewhere a line at the first trouble and again from time to time.
pub struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    until_line: u32,
}

impl Progress {
    /// Answers between two lines of trouble: a minute, at three a second.
    const LINE_ANSWERS: u32 = 200;

    pub fn new() -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let bar = if is_terminal { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        Self { bar, is_terminal, until_line: 0 }
    }

    pub fn show(&mut self, text: &str, trouble: Option<String>) {
        self.until_line = self.until_line.saturating_sub(1);
        let Some(trouble) = trouble else {
            self.bar.set_message(text.to_string());
            self.bar.tick();
            return;
        };
        self.bar.set_message(format!("{text} ({trouble})"));
        self.bar.tick();
        if !self.is_terminal && self.until_line == 0 {
            note!("{text}; {trouble}");
            self.until_line = Self::LINE_ANSWERS;
        }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
