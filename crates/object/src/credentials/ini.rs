//! The part of the INI language that AWS files use: `[section]`, `name = value`, comments, and indented lines of nested
//! settings, which nothing here needs and which are passed over.

use std::collections::BTreeMap;

/// Names and values.
pub(crate) struct Section(BTreeMap<String, String>);

impl Section {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// A file. Lines that are not understood are passed over, as the AWS tools do.
#[derive(Default)]
pub(crate) struct Ini(BTreeMap<String, Section>);

impl Ini {
    pub(crate) fn parse(text: &str) -> Self {
        let mut ini = Self::default();
        let mut current = None;
        for line in text.trim_start_matches('\u{feff}').lines() {
            let nested = line.starts_with([' ', '\t']);
            let line = line.trim();
            if line.is_empty() || nested || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(rest) = line.strip_prefix('[') {
                let name = rest.split(']').next().unwrap_or_default();
                let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
                ini.0.entry(name.clone()).or_insert_with(|| Section(BTreeMap::new()));
                current = Some(name);
            } else if let (Some((name, value)), Some(section)) = (line.split_once('='), &current) {
                let value = without_comment(value).trim();
                if let Some(section) = ini.0.get_mut(section).filter(|_| !value.is_empty()) {
                    section.0.insert(name.trim().to_ascii_lowercase(), value.into());
                }
            }
        }
        ini
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.0.get(name)
    }
}

/// A comment behind a value starts with white space: secrets may hold any other character.
fn without_comment(value: &str) -> &str {
    let end = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| value.find(mark)).min();
    &value[..end.unwrap_or(value.len())]
}
