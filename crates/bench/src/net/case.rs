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
    /// The node answers what its memory has on the thread that took the request; without it every read is a task's.
    pub at_once: bool,
    /// What the node holds for a peer is bounded.
    pub bound: bool,
    /// Another peer asks for as much as it may, and takes nothing.
    pub stalled: bool,
    /// Read by way of a group of nodes.
    pub group: Option<GroupCase>,
    /// What it is, in a line.
    pub text: &'static str,
}

/// Whole segments read from whoever of two nodes should have them, as a mount's tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCase {
    /// What ails the nodes.
    pub ail: Ail,
    /// What becomes of the list of members when the measurement begins. Nodes but the first are empty if anything does.
    pub change: Change,
    /// All read one object.
    pub hot: bool,
    /// The next owner is asked when the first one is slow.
    pub hedge: bool,
    /// What is hot is asked of a second owner in turns.
    pub second_owner: bool,
    /// A node is told what is not waited for any more.
    pub cancel: bool,
    /// A node is told how long it is waited for.
    pub deadlines: bool,
    /// Nodes have weights by what they can do; without it equal ones.
    pub weights: bool,
    /// A node asks the former owner for what it misses, before the store.
    pub previous: bool,
}

/// What ails nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ail {
    /// Nothing.
    None,
    /// Each holds back one answer of [`LATE_ONE_IN`] for [`LATE_BY`].
    Late,
    /// All but the first hold back each answer for [`SLOW_BY`].
    Slow,
    /// One read of [`ABSENT_ONE_IN`] is of an object that none of them has, and the store does not answer.
    StoreHangs,
}

/// A change of the list of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is none.
    None,
    /// The first node had everything, and others join it.
    Join,
    /// The first node had everything, others join it, and it is drained.
    Drain,
    /// Others take its place at once.
    Replace,
}

/// Of so many answers a node that is late holds one back...
pub(super) const LATE_ONE_IN: u32 = 50;
/// ... for so long.
pub(super) const LATE_BY: Duration = Duration::from_millis(500);
/// What a slow node needs for each answer.
pub(super) const SLOW_BY: Duration = Duration::from_millis(20);
/// Of so many reads one is of an object that the nodes lack...
pub(super) const ABSENT_ONE_IN: usize = 50;
/// ... one of so many.
pub(super) const ABSENT_OBJECTS: u32 = 8;
/// A read of the store, where it answers.
pub(super) const STORE_TAKES: Duration = Duration::from_millis(30);

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
    at_once: true,
    bound: true,
    stalled: false,
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
const STALLED: Case = Case {
    name: "stalled",
    base: "stalled",
    counter: "held_mib",
    stalled: true,
    text: "another peer asks for 1,024 reads, and takes nothing",
    ..ALL
};
const GROUP: GroupCase = GroupCase {
    ail: Ail::None,
    change: Change::None,
    hot: false,
    hedge: true,
    second_owner: true,
    cancel: true,
    deadlines: true,
    weights: true,
    previous: true,
};
const HOT_GROUP: GroupCase = GroupCase { hot: true, ..GROUP };
const HOT: Case = Case {
    name: "hot",
    base: "hot",
    counter: "second_owner",
    group: Some(HOT_GROUP),
    text: "two nodes, everybody reads one object",
    ..ALL
};
const LATE_GROUP: GroupCase = GroupCase { ail: Ail::Late, ..GROUP };
const LATE: Case = Case {
    name: "late",
    base: "late",
    counter: "hedged",
    group: Some(LATE_GROUP),
    text: "two nodes, each late by 0.5 s once in 50 answers",
    ..ALL
};
const HANGS_GROUP: GroupCase = GroupCase { ail: Ail::StoreHangs, ..GROUP };
const HANGS: Case = Case {
    name: "store-hangs",
    base: "store-hangs",
    counter: "missed",
    group: Some(HANGS_GROUP),
    text: "two nodes, one read of 50 is of what only a store has that does not answer them",
    ..ALL
};
const UNEVEN_GROUP: GroupCase = GroupCase { ail: Ail::Slow, ..GROUP };
const UNEVEN: Case = Case {
    name: "uneven",
    base: "uneven",
    counter: "others",
    group: Some(UNEVEN_GROUP),
    text: "two nodes, the second is slow and has a ninth of the weight",
    ..ALL
};
const DRAIN_GROUP: GroupCase = GroupCase { change: Change::Drain, ..GROUP };
const DRAIN: Case = Case {
    name: "drain",
    base: "drain",
    counter: "node_fetched",
    group: Some(DRAIN_GROUP),
    text: "one node had everything, and hands it on to another",
    ..ALL
};
const JOIN_GROUP: GroupCase = GroupCase { change: Change::Join, ..GROUP };
const JOIN: Case = Case {
    name: "join",
    base: "join",
    counter: "node_fetched",
    group: Some(JOIN_GROUP),
    text: "one node had everything, and another joins it",
    ..ALL
};

impl Case {
    /// Every case, in the order of the report.
    pub const EVERY: [Self; 28] = [
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
        Self { name: "no-at-once", counter: "node_later", at_once: false, text: "each answer is a task's", ..ALL },
        UNCHECKED,
        Self { name: "no-splice", splice: false, text: "the same, read into memory", ..UNCHECKED },
        STALLED,
        Self { name: "no-bound", bound: false, text: "the same, and the node holds whatever it asks for", ..STALLED },
        LATE,
        Self {
            name: "no-hedge",
            group: Some(GroupCase { hedge: false, ..LATE_GROUP }),
            text: "the same, waited for",
            ..LATE
        },
        Self {
            name: "no-cancel",
            counter: "node_cancelled",
            group: Some(GroupCase { cancel: false, ..LATE_GROUP }),
            text: "the same, and who is overtaken answers all the same",
            ..LATE
        },
        HANGS,
        Self {
            name: "no-deadlines",
            group: Some(GroupCase { deadlines: false, ..HANGS_GROUP }),
            text: "the same, and nodes do not know how long they are waited for",
            ..HANGS
        },
        HOT,
        Self {
            name: "no-second-owner",
            group: Some(GroupCase { second_owner: false, ..HOT_GROUP }),
            text: "the same, from its owner alone",
            ..HOT
        },
        UNEVEN,
        Self {
            name: "no-weights",
            group: Some(GroupCase { weights: false, ..UNEVEN_GROUP }),
            text: "the same, with equal weights",
            ..UNEVEN
        },
        DRAIN,
        Self {
            name: "no-drain",
            group: Some(GroupCase { change: Change::Replace, ..DRAIN_GROUP }),
            text: "the same, and it is gone at once",
            ..DRAIN
        },
        JOIN,
        Self {
            name: "no-previous",
            group: Some(GroupCase { previous: false, ..JOIN_GROUP }),
            text: "the same, and it asks the store alone",
            ..JOIN
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

    /// What ails its nodes.
    pub(super) fn ail(&self) -> Ail {
        self.group.map_or(Ail::None, |group| group.ail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_cases() {
        for case in Case::EVERY {
            assert_eq!(Case::find(case.base).map(|base| base.base), Some(case.base));
            assert_eq!(Case::find(case.name), Some(case));
        }
        assert_eq!(Case::find("no-such"), None);
    }

    #[test]
    fn everything_is_what_is_the_default() {
        assert_eq!(ALL.techniques, Techniques::default());
    }
}
