//! Replies that wait until other sessions have taken what a change pushed to them; no I/O.

use sluice_base::SessionId;
use sluice_run::collections::HashMap;
use std::collections::BTreeSet;

/// Names a reply that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Waits for a session's return or end instead of an ack.
pub const UNTIL_GONE: u64 = u64::MAX;

#[derive(Debug)]
struct Hold<T> {
    /// Sessions that are still waited for.
    left: usize,
    reply: T,
}

/// The held replies.
#[derive(Debug)]
pub struct Holds<T> {
    holds: HashMap<Token, Hold<T>>,
    /// What waits for each session, by the number of the push.
    waiting: HashMap<SessionId, BTreeSet<(u64, Token)>>,
}

impl<T> Default for Holds<T> {
    fn default() -> Self {
        Self { holds: HashMap::default(), waiting: HashMap::default() }
    }
}

impl<T> Holds<T> {
    /// Holds `reply` until each session of `waits` has acked its number.
    pub fn hold(&mut self, token: Token, waits: &[(SessionId, u64)], reply: T) {
        let mut left = 0;
        for (session, number) in waits {
            left += usize::from(self.waiting.entry(*session).or_default().insert((*number, token)));
        }
        self.holds.insert(token, Hold { left, reply });
    }

    /// A session has acked up to `number`: what that lets go.
    pub fn acked(&mut self, session: SessionId, number: u64) -> Vec<(Token, T)> {
        let mut free = Vec::new();
        let Some(waiting) = self.waiting.get_mut(&session) else { return free };
        while waiting.first().is_some_and(|(first, _)| *first <= number) {
            let (_, token) = waiting.pop_first().expect("there is a first");
            let Some(hold) = self.holds.get_mut(&token) else { continue };
            hold.left -= 1;
            if hold.left == 0 {
                free.extend(self.holds.remove(&token).map(|hold| (token, hold.reply)));
            }
        }
        if waiting.is_empty() {
            self.waiting.remove(&session);
        }
        free
    }

    /// A session caches nothing any more: what waits for it does so no longer.
    pub fn gone(&mut self, session: SessionId) -> Vec<(Token, T)> {
        self.acked(session, UNTIL_GONE)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.holds.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_goes_when_the_last_ack_is_in() {
        let (a, b) = (SessionId(1), SessionId(2));
        let mut holds = Holds::default();
        holds.hold(Token(1), &[(a, 3), (b, 7)], "one");
        holds.hold(Token(2), &[(a, 4)], "two");
        holds.hold(Token(3), &[(b, UNTIL_GONE)], "three");
        assert_eq!(holds.acked(a, 3), []);
        assert_eq!(holds.acked(b, 6), []);
        assert_eq!(holds.acked(a, 9), [(Token(2), "two")]);
        assert_eq!(holds.gone(b), [(Token(1), "one"), (Token(3), "three")]);
        assert_eq!(holds.len(), 0);
        assert!(holds.waiting.is_empty());
    }

    #[test]
    fn one_session_may_be_waited_for_by_several_numbers() {
        let mut holds = Holds::default();
        holds.hold(Token(1), &[(SessionId(1), 3), (SessionId(1), 5), (SessionId(1), 5)], ());
        assert_eq!(holds.acked(SessionId(1), 3), []);
        assert_eq!(holds.acked(SessionId(1), 5), [(Token(1), ())]);
    }
}
