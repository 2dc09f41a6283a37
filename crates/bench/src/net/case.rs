//! What is switched off in which case.

use sluice_net::port::Techniques;
use std::time::Duration;

/// A way of moving bytes: everything, nothing, or everything but one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// As the command line and the report call it.
    pub name: &'static str,
    /// The case that it is compared with.
    pub base: &'static str,
    /// Of [`Line::counts`](super::Line::counts), what shows that it is off.
    pub counter: &'static str,
    /// What lanes use.
    pub techniques: Techniques,
    /// The number of bulk lanes follows the traffic; without it there is one.
    pub more_lanes: bool,
    /// The node combines the CRCs that are stored; without it it reads the bytes for theirs.
    pub combine: bool,
    /// The client compares every byte with its CRC.
    pub check: bool,
    /// The client moves what it does not look at into pipes by splice.
    pub splice: bool,
    /// Read by way of a group of nodes.
    pub group: Option<GroupCase>,
    /// What it is, in a line.
    pub text: &'static str,
}

/// Whole segments read from whoever of two nodes should have them, as a mount's tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCase {
    /// Each node holds back one answer of [`LATE_ONE_IN`] for [`LATE_BY`].
    pub late: bool,
    /// The next owner is asked when the first one is slow.
    pub hedge: bool,
    /// All read one object.
    pub hot: bool,
    /// What is hot is asked of a second owner in turns.
    pub second_owner: bool,
}

/// Of so many answers a node that is late holds one back...
pub(super) const LATE_ONE_IN: u32 = 50;
/// ... for so long.
pub(super) const LATE_BY: Duration = Duration::from_millis(500);

const ALL: Case = Case {
    name: "all",
    base: "all",
    counter: "client_reads",
    techniques: Techniques {
        multiplex: true,
        small_lanes: true,
        coalesce: true,
        batch: true,
        low_water: true,
        sendfile: true,
    },
    more_lanes: true,
    combine: true,
    check: true,
    splice: true,
    group: None,
    text: "everything on",
};
const PLAIN: Case = Case {
    name: "plain",
    techniques: Techniques::PLAIN,
    more_lanes: false,
    combine: false,
    splice: false,
    text: "everything off",
    ..ALL
};
const UNCHECKED: Case = Case {
    name: "unchecked",
    base: "unchecked",
    counter: "client_splices",
    check: false,
    text: "nobody looks at large answers: spliced into pipes",
    ..ALL
};
const GROUP: GroupCase = GroupCase { late: false, hedge: true, hot: false, second_owner: true };
const LATE: Case = Case {
    name: "late",
    base: "late",
    counter: "hedged",
    group: Some(GroupCase { late: true, ..GROUP }),
    text: "two nodes, each late by 0.5 s once in 50 answers",
    ..ALL
};
const HOT: Case = Case {
    name: "hot",
    base: "hot",
    counter: "second_owner",
    group: Some(GroupCase { hot: true, ..GROUP }),
    text: "two nodes, everybody reads one object",
    ..ALL
};

impl Case {
    /// Every case, in the order of the report.
    pub const EVERY: [Self; 16] = [
        ALL,
        PLAIN,
        Self {
            name: "no-multiplex",
            counter: "lanes",
            techniques: Techniques { multiplex: false, ..ALL.techniques },
            text: "one request at a time on a lane",
            ..ALL
        },
        Self {
            name: "no-small-lanes",
            techniques: Techniques { small_lanes: false, ..ALL.techniques },
            text: "small answers behind large ones",
            ..ALL
        },
        Self {
            name: "no-coalesce",
            counter: "client_writes",
            techniques: Techniques { coalesce: false, ..ALL.techniques },
            text: "each frame sent by itself",
            ..ALL
        },
        Self {
            name: "no-batch",
            techniques: Techniques { batch: false, ..ALL.techniques },
            text: "each header and body read by itself",
            ..ALL
        },
        Self {
            name: "no-low-water",
            counter: "client_low_waters",
            techniques: Techniques { low_water: false, ..ALL.techniques },
            text: "woken by every packet (no SO_RCVLOWAT)",
            ..ALL
        },
        Self {
            name: "no-sendfile",
            counter: "node_sendfiles",
            techniques: Techniques { sendfile: false, ..ALL.techniques },
            text: "the node reads and writes",
            ..ALL
        },
        Self { name: "no-combine", counter: "node_summed", combine: false, text: "the node computes CRCs anew", ..ALL },
        Self {
            name: "no-more-lanes",
            counter: "lanes",
            more_lanes: false,
            text: "one bulk lane, however much there is to do",
            ..ALL
        },
        UNCHECKED,
        Self { name: "no-splice", splice: false, text: "the same, read into memory", ..UNCHECKED },
        LATE,
        Self {
            name: "no-hedge",
            group: Some(GroupCase { late: true, hedge: false, ..GROUP }),
            text: "the same, waited for",
            ..LATE
        },
        HOT,
        Self {
            name: "no-second-owner",
            group: Some(GroupCase { hot: true, second_owner: false, ..GROUP }),
            text: "the same, from its owner alone",
            ..HOT
        },
    ];

    /// The one with this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::EVERY.into_iter().find(|case| case.name == name)
    }

    /// Whether each request has a connection to itself.
    pub fn is_one_by_one(&self) -> bool {
        !self.techniques.multiplex
    }

    /// Nodes that it needs.
    pub fn nodes(&self) -> usize {
        if self.group.is_some() { 2 } else { 1 }
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
            assert_eq!(Case::find(case.base).map(|base| base.base), Some(case.base));
            assert_eq!(Case::decode(&case.encode()), Some(case));
        }
        assert_eq!(Case::find("no-such"), None);
    }

    #[test]
    fn everything_is_what_is_the_default() {
        assert_eq!(ALL.techniques, Techniques::default());
    }
}
