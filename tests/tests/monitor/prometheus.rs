//! A strict reader of Prometheus' text format: what it accepts, Prometheus does.

use std::collections::{BTreeMap, BTreeSet};

/// The samples of a page.
pub struct Scrape {
    samples: BTreeMap<String, f64>,
    pub families: BTreeSet<String>,
}

impl Scrape {
    /// Reads a page, line by line: each family begins with HELP and TYPE and has samples; counters end in `_total`; nothing is there
    /// twice.
    pub fn parse(page: &str) -> Self {
        assert!(page.ends_with('\n'), "the last line has no end");
        let mut scrape = Self { samples: BTreeMap::new(), families: BTreeSet::new() };
        let (mut family, mut kind, mut left) = (String::new(), None, true);
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                assert!(left, "{family} has no sample");
                let (name, help) = rest.split_once(' ').expect("a help text");
                assert!(!help.is_empty() && is_name(name) && name.starts_with("sluice_"), "{line}");
                assert!(scrape.families.insert(name.into()), "{name} is there twice");
                (family, kind, left) = (name.into(), None, false);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, what) = rest.split_once(' ').expect("a type");
                assert!(name == family && kind.is_none() && ["counter", "gauge"].contains(&what), "{line}");
                assert_eq!(what == "counter", name.ends_with("_total"), "{line}");
                kind = Some(what);
            } else {
                let (key, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
                let name = key.split('{').next().expect("a name");
                assert!(name == family && kind.is_some(), "a sample outside its family: {line}");
                check_labels(&key[name.len()..]);
                let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
                assert!(value.is_finite() && value >= 0.0, "{line}");
                assert!(scrape.samples.insert(key.into(), value).is_none(), "twice: {line}");
                left = true;
            }
        }
        assert!(left && !scrape.families.is_empty());
        scrape
    }

    /// The sample with exactly this name and these labels.
    #[track_caller]
    pub fn value(&self, key: &str) -> f64 {
        *self.samples.get(key).unwrap_or_else(|| panic!("no {key} among {:#?}", self.samples))
    }
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_')
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Nothing, or `{name="text",...}`; no text of ours has a quote or a backslash in it.
fn check_labels(text: &str) {
    if text.is_empty() {
        return;
    }
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or_else(|| panic!("{text}"));
    for label in inner.split(',') {
        let (name, value) = label.split_once('=').unwrap_or_else(|| panic!("{text}"));
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        assert!(is_name(name) && value.is_some_and(|value| !value.contains(['"', '\\'])), "{text}");
    }
}
