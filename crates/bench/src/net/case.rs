//! What is switched off in which case.

use sluice_net::port::Techniques;

/// A way of moving bytes: everything, nothing, or everything but one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// As the command line and the report call it.
    pub name: &'static str,
    /// What lanes use.
    pub techniques: Techniques,
    /// The node combines the CRCs that are stored; without it it reads the bytes for theirs.
    pub combine: bool,
    /// What it is, in a line.
    pub text: &'static str,
}

const ALL: Techniques =
    Techniques { multiplex: true, small_lanes: true, coalesce: true, batch: true, low_water: true, sendfile: true };

impl Case {
    /// Every case, in the order of the report.
    pub const EVERY: [Self; 9] = [
        Self { name: "all", techniques: ALL, combine: true, text: "everything on" },
        Self { name: "plain", techniques: Techniques::PLAIN, combine: false, text: "everything off" },
        Self {
            name: "no-multiplex",
            techniques: Techniques { multiplex: false, ..ALL },
            combine: true,
            text: "one request at a time on a lane",
        },
        Self {
            name: "no-small-lanes",
            techniques: Techniques { small_lanes: false, ..ALL },
            combine: true,
            text: "small answers behind large ones",
        },
        Self {
            name: "no-coalesce",
            techniques: Techniques { coalesce: false, ..ALL },
            combine: true,
            text: "each frame sent by itself",
        },
        Self {
            name: "no-batch",
            techniques: Techniques { batch: false, ..ALL },
            combine: true,
            text: "each header and body read by itself",
        },
        Self {
            name: "no-low-water",
            techniques: Techniques { low_water: false, ..ALL },
            combine: true,
            text: "woken by every packet (no SO_RCVLOWAT)",
        },
        Self {
            name: "no-sendfile",
            techniques: Techniques { sendfile: false, ..ALL },
            combine: true,
            text: "the node reads and writes",
        },
        Self { name: "no-combine", techniques: ALL, combine: false, text: "the node computes CRCs anew" },
    ];

    /// The one with this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::EVERY.into_iter().find(|case| case.name == name)
    }

    /// Whether each request has a connection to itself.
    pub fn is_one_by_one(&self) -> bool {
        !self.techniques.multiplex
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        self.name.as_bytes().to_vec()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        Self::find(std::str::from_utf8(bytes).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_cases() {
        for case in Case::EVERY {
            assert_eq!(Case::decode(&case.encode()), Some(case));
        }
        assert_eq!(Case::find("no-such"), None);
    }

    #[test]
    fn everything_is_what_is_the_default() {
        assert_eq!(Case::EVERY[0].techniques, Techniques::default());
    }
}
