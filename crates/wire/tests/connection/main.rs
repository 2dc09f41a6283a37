//! Connections without sockets: two of them in memory, and one against a peer that does not keep the rules.

mod bounds;
mod calls;
mod hostile;
mod pair;
mod random;
mod records;
mod splits;
mod visited;
