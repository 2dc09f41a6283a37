//! The text format of Prometheus, version 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).

use std::fmt::Write;

/// A sample's value.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A count, or bytes.
    Whole(u64),
    /// Seconds, or a share.
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<u32> for Number {
    fn from(number: u32) -> Self {
        Self::Whole(number.into())
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Whole(number as u64)
    }
}

impl From<bool> for Number {
    fn from(is: bool) -> Self {
        Self::Whole(is.into())
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

/// A page of metrics, written family by family.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a family of numbers that only grow while the process runs; its name ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        debug_assert!(name.ends_with("_total"), "{name}");
        self.family(name, "counter", help)
    }

    /// Begins a family of numbers that go up and down.
    pub fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        debug_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
        debug_assert!(!self.text.contains(&format!("# TYPE {name} ")), "{name} is there already");
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text: &mut self.text, name }
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// A family of a page, to which samples are added; each has other labels.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Family<'_> {
    /// The one sample of a family without labels.
    pub fn is(self, value: impl Into<Number>) {
        self.sample(&[], value);
    }

    /// One sample.
    pub fn sample(mut self, labels: &[(&str, &str)], value: impl Into<Number>) -> Self {
        self.add(labels, value);
        self
    }

    /// One sample of several.
    pub fn add(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) {
        self.text.push_str(self.name);
        for (n, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
            let _ = write!(self.text, "{}{label}=\"{text}\"", if n == 0 { '{' } else { ',' });
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = match value.into() {
            Number::Whole(number) => writeln!(self.text, "{end} {number}"),
            Number::Real(number) if number.is_infinite() => {
                writeln!(self.text, "{end} {}Inf", if number > 0.0 { '+' } else { '-' })
            }
            Number::Real(number) => writeln!(self.text, "{end} {number}"),
        };
    }
}

/// Memory of this process that is in RAM, from proc_pid_status(5); 0 where that cannot be read.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_samples_and_what_is_escaped() {
        let mut page = Page::default();
        page.gauge("a_bytes", "Bytes \\ of\na.").is(7_u64);
        page.counter("b_total", "B.")
            .sample(&[("kind", "x"), ("at", "a\"b\\c\nd")], 1_u64)
            .sample(&[("kind", "y")], 2.5);
        page.gauge("c", "C.").is(f64::INFINITY);
        let expected = [
            "# HELP a_bytes Bytes \\\\ of\\na.",
            "# TYPE a_bytes gauge",
            "a_bytes 7",
            "# HELP b_total B.",
            "# TYPE b_total counter",
            "b_total{kind=\"x\",at=\"a\\\"b\\\\c\\nd\"} 1",
            "b_total{kind=\"y\"} 2.5",
            "# HELP c C.",
            "# TYPE c gauge",
            "c +Inf",
            "",
        ];
        assert_eq!(page.into_text(), expected.join("\n"));
    }

    #[test]
    fn this_process_takes_memory() {
        assert!(resident_bytes() > 100 << 10);
    }
}
