//! Engines: where a cluster is put, and where it is looked for.
//!
//! A segment of a file is a hash on the engine, `memfold:FILE:SEGMENT`, whose fields are the numbers of clusters. `FILE` is 128 random bits, and no two
//! clusters of a file have one number, so what an engine that was away has kept is never taken for something newer. Each hash has an expiry, which is
//! renewed while it is wanted.
//!
//! Of several engines each segment has its own order; its copies are on the first of them that could be reached. To read, all are asked in that order.
//!
//! In a cluster the key says which node has it. So a segment has several keys there, `memfold:FILE:SEGMENT:WAY`, and its copies are under the first of them that
//! lie on different nodes which could be reached. To read, all keys are asked for in their order.

use crate::config::Config;
use crate::connection::Connection;
use crate::node::{place_of, Failure};
use crate::nodes::{Key, Nodes};
use memfold_pager::tier::wire::{Name, NameText};

/// Keys that a segment can have in a cluster: of nodes that have as much each, one in two to the fifteenth of these is all on one.
const WAYS: usize = 16;

/// Connections to all engines, of one thread.
pub struct Engines {
    nodes: Nodes,
}

/// Copies of segments of a file, wherever they are.
pub struct Copies {
    file: Name,
    /// Each by its segment, and the way in which that is kept.
    ways: Vec<(u32, usize)>,
}

impl Engines {
    /// None is made yet.
    pub fn new(config: Config) -> Engines {
        Engines { nodes: Nodes::new(config) }
    }

    /// Keeps a cluster on as many engines as were asked for.
    ///
    /// # Errors
    /// Fewer have it.
    pub fn put(&mut self, file: Name, segment: u32, number: u32, bytes: &[u8]) -> Result<(), Failure> {
        let expire = self.nodes.config.expire.as_millis() as i64;
        let (mut kept, mut failure) = (Vec::new(), Failure::Away);
        self.nodes.know();
        for way in self.ways(file, segment) {
            let Some(key) = self.key(file, segment, way) else { continue };
            if self.nodes.all[key.node].rests() {
                continue;
            }
            if kept.contains(&place_of(&self.nodes.all[key.node].info)) {
                continue;
            }
            let (text, is_cluster) = (key.text.clone(), self.nodes.config.cluster);
            let hset = |connection: &mut Connection, moving: bool| {
                let mut pipe = redis::pipe();
                if !is_cluster {
                    // A node that has it no more says so before anything is done, and of a transaction says less.
                    pipe.atomic();
                }
                permit(&mut pipe, moving).hset(&text, number, bytes).ignore();
                permit(&mut pipe, moving).pexpire(&text, expire).ignore();
                pipe.query::<()>(connection)
            };
            match self.nodes.ask_for(key, hset) {
                Ok(((), place)) if kept.contains(&place) => {}
                Ok(((), place)) => kept.push(place),
                // Full is more worth telling than away.
                Err(Failure::Away) => {}
                Err(other) => failure = other,
            }
            if kept.len() == self.nodes.config.copies() {
                return Ok(());
            }
        }
        Err(failure)
    }

    /// Fetches a cluster; `None` where no engine has it, and all were asked.
    ///
    /// # Errors
    /// One that could not be asked may have it.
    pub fn get(&mut self, file: Name, segment: u32, number: u32) -> Result<Option<Vec<u8>>, Failure> {
        let mut failure = None;
        self.nodes.know();
        let mut ways: Vec<usize> = self.ways(file, segment).collect();
        // Who has answered is asked first.
        let is_away = |key: Option<Key>| key.is_none_or(|key| self.nodes.all[key.node].away.is_some());
        if self.nodes.all.iter().any(|node| node.away.is_some()) {
            ways.sort_by_cached_key(|&way| is_away(self.key(file, segment, way)));
        }
        for way in ways {
            let Some(key) = self.key(file, segment, way) else {
                failure = Some(Failure::Away);
                continue;
            };
            let text = key.text.clone();
            let hget = |connection: &mut Connection, moving: bool| {
                let mut pipe = redis::pipe();
                permit(&mut pipe, moving).hget(&text, number);
                pipe.query::<(Option<Vec<u8>>,)>(connection)
            };
            match self.nodes.ask_for(key, hget) {
                Ok(((Some(bytes),), _)) => return Ok(Some(bytes)),
                Ok(((None,), _)) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// All copies that there may be of segments of a file.
    pub fn copies_of(&self, file: Name, segments: &[u32]) -> Copies {
        let ways = |&segment: &u32| self.ways(file, segment).map(move |way| (segment, way));
        Copies { file, ways: segments.iter().flat_map(ways).collect() }
    }

    /// Has engines drop copies, and leaves those that it could not ask for, which are dropped when they expire. Whether there are none.
    pub fn forget(&mut self, copies: &mut Copies) -> bool {
        self.all(copies, |pipe, key| {
            pipe.unlink(key).ignore();
        })
    }

    /// Has engines keep copies for longer, and leaves those that it could not ask for. Whether there are none.
    pub fn renew(&mut self, copies: &mut Copies) -> bool {
        let expire = self.nodes.config.expire.as_millis() as i64;
        self.all(copies, |pipe, key| {
            pipe.pexpire(key, expire).ignore();
        })
    }

    fn all(&mut self, copies: &mut Copies, each: impl Fn(&mut redis::Pipeline, &str)) -> bool {
        self.nodes.know();
        let mut left = Vec::new();
        // What each node is asked for.
        let mut asked: Vec<Vec<(u32, usize, String)>> = self.nodes.all.iter().map(|_| Vec::new()).collect();
        for (segment, way) in copies.ways.drain(..) {
            match self.key(copies.file, segment, way) {
                Some(key) if !self.nodes.all[key.node].rests() => {
                    asked[key.node].push((segment, way, key.text))
                }
                _ => left.push((segment, way)),
            }
        }
        for (node, asked) in asked.iter().enumerate() {
            for some in asked.chunks(500) {
                let mut pipe = redis::pipe();
                some.iter().for_each(|(.., key)| each(&mut pipe, key));
                if self.nodes.ask(node, |connection| pipe.query::<()>(connection)).is_err() {
                    left.extend(some.iter().map(|&(segment, way, _)| (segment, way)));
                }
            }
        }
        copies.ways = left;
        if !copies.ways.is_empty() && self.nodes.config.cluster {
            self.nodes.find();
        }
        copies.ways.is_empty()
    }

    /// The ways in which a segment can be kept, in its order: by which engine, or in a cluster by which key.
    fn ways(&self, file: Name, segment: u32) -> impl Iterator<Item = usize> + use<> {
        let count = if self.nodes.config.cluster { WAYS } else { self.nodes.all.len() };
        let first = (usize::from(file[0]) + segment as usize) % count;
        (0..count).map(move |n| (first + n) % count)
    }

    /// What it is called that way, and who has it. `None` where that cannot be said now.
    fn key(&self, file: Name, segment: u32, way: usize) -> Option<Key> {
        let text = format!("memfold:{}:{segment}", NameText(file));
        if !self.nodes.config.cluster {
            return Some(Key { text, node: way });
        }
        let text = format!("{text}:{way}");
        let node = self.nodes.owner(&text)?;
        Some(Key { text, node })
    }
}

/// Before a command on a key that is on its way there, which a node executes only if it is told so just before.
fn permit(pipe: &mut redis::Pipeline, moving: bool) -> &mut redis::Pipeline {
    if moving {
        pipe.cmd("ASKING").ignore();
    }
    pipe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::PATIENCE;
    use crate::fake::{self, config, Fake};
    use crate::node::REST;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, OnceLock};
    use std::time::Instant;

    const FILE: Name = [1; 16];
    const OK: &str = "+OK\r\n";

    fn said(text: &str) -> Option<String> {
        Some(format!("{text}\r\n"))
    }

    /// Two nodes that have a half each, and answer anything else in this way; with their ports.
    fn halves(answer: impl Fn(usize, &str, [u16; 2]) -> fake::Answer + Clone + Send + 'static) -> [Fake; 2] {
        let ports = Arc::new(OnceLock::<[u16; 2]>::new());
        let nodes = [0, 1].map(|number| {
            let (ports, answer) = (ports.clone(), answer.clone());
            Fake::start(move |words| match &words[0][..] {
                "CLUSTER" => Some(fake::halves(*ports.get().unwrap())),
                word => answer(number, word, *ports.get().unwrap()),
            })
        });
        ports.set(nodes.each_ref().map(|node| node.port)).unwrap();
        nodes
    }

    #[test]
    fn a_cluster_that_is_found_late_has_as_many_nodes_as_it_says() {
        let ports = Arc::new(OnceLock::new());
        let (known, mut asked) = (ports.clone(), 0);
        let first = Fake::start(move |words| {
            asked += usize::from(words[0] == "CLUSTER");
            match &words[0][..] {
                // It takes so long that it may be asked again at once.
                "CLUSTER" if asked == 1 => {
                    std::thread::sleep(REST);
                    said("-LOADING not yet")
                }
                "CLUSTER" => Some(fake::halves(*known.get().unwrap())),
                _ => said(":1"),
            }
        });
        let second = Fake::start(|_| said(":1"));
        ports.set([first.port, second.port]).unwrap();
        let mut engines = Engines::new(config(&[&first], true, ""));
        let mut copies = engines.copies_of(FILE, &[0, 1]);
        assert!(!engines.forget(&mut copies), "nobody could be asked");
        assert!(engines.forget(&mut copies));
        assert!(second.asked().contains(&"UNLINK".to_owned()));
    }

    #[test]
    fn a_key_that_is_on_its_way_is_asked_for_where_it_goes() {
        let nodes = halves(|number, word, ports| match (number, word) {
            (0, "ASKING") => said("+OK"),
            (0, "HGET") => said("$1\r\nx"),
            (0, _) => said(":1"),
            _ => said(&format!("-ASK 9000 127.0.0.1:{}", ports[0])),
        });
        let mut engines = Engines::new(config(&[&nodes[0]], true, ",copies=1"));
        let of_second = (0..).find(|&segment| {
            engines.nodes.know();
            let way = engines.ways(FILE, segment).next().unwrap();
            engines.key(FILE, segment, way).unwrap().node == 1
        });
        let segment = of_second.unwrap();
        engines.put(FILE, segment, 0, b"x").unwrap();
        assert_eq!(nodes[0].asked(), ["CLUSTER", "ASKING", "HSET", "ASKING", "PEXPIRE"]);
        assert_eq!(engines.get(FILE, segment, 0), Ok(Some(b"x".to_vec())));
        assert_eq!(nodes[0].asked(), ["ASKING", "HGET"]);
    }

    #[test]
    fn a_connection_that_was_closed_while_it_was_idle_is_made_anew_at_once() {
        let mut count = 0;
        let engine = Fake::start(move |_| {
            count += 1;
            // As an engine with `timeout`, after every two answers.
            (count % 3 != 0).then(|| "$1\r\nx\r\n".into())
        });
        let mut engines = Engines::new(config(&[&engine], false, ""));
        for _ in 0..6 {
            assert_eq!(engines.get(FILE, 0, 0), Ok(Some(b"x".to_vec())));
        }
    }

    #[test]
    fn an_engine_that_lets_us_wait_is_asked_ever_more_seldom_where_another_has_what_it_has() {
        let [silent, other] = [false, true].map(|answers| {
            Fake::start(move |words| match (answers, &words[0][..]) {
                (false, _) => loop {
                    std::thread::park();
                },
                (true, "HGET") => said("$1\r\nx"),
                (true, "MULTI") => said("+OK"),
                (true, "EXEC") => said("*2\r\n:1\r\n:1"),
                (true, _) => said("+QUEUED"),
            })
        });
        let mut engines = Engines::new(config(&[&silent, &other], false, ""));
        // In whose order the silent one is the first.
        let segment = (0..).find(|&segment| engines.ways(FILE, segment).next() == Some(0)).unwrap();
        let is_kept = Ok(Some(b"x".to_vec()));
        let later = |engines: &mut Engines| {
            let away = engines.nodes.all[0].away.as_mut().unwrap();
            away.since -= REST;
            away.rest
        };
        assert_eq!(engines.get(FILE, segment, 0), is_kept);
        assert_eq!(silent.asked(), ["HGET"]);
        assert_eq!(later(&mut engines), REST);
        assert_eq!(engines.get(FILE, segment, 0), is_kept);
        assert_eq!(engines.put(FILE, segment, 0, b"x"), Err(Failure::Away), "there are no two");
        assert_eq!(silent.asked(), ["MULTI"], "a touch has not asked it");
        assert_eq!(later(&mut engines), 2 * REST);
        assert_eq!(engines.put(FILE, segment, 0, b"x"), Err(Failure::Away));
        assert_eq!(silent.asked(), [""; 0], "it is left alone for longer");
    }

    #[test]
    fn an_engine_that_falls_silent_is_waited_for_once_and_not_for_each_answer() {
        let mut asked = 0;
        let engine = Fake::start(move |_| {
            asked += 1;
            // As one that is stopped, or that is behind a network that is cut.
            match asked {
                1 => said(":1"),
                _ => loop {
                    std::thread::park();
                },
            }
        });
        let mut engines = Engines::new(config(&[&engine], false, ""));
        let [mut one, mut ten] = [1, 10].map(|count| engines.copies_of(FILE, &Vec::from_iter(0..count)));
        assert!(engines.renew(&mut one));
        let began = Instant::now();
        assert!(!engines.renew(&mut ten));
        assert!(began.elapsed() < 5 * PATIENCE, "it has waited for each");
    }

    #[test]
    fn what_one_engine_has_done_it_is_not_asked_for_again_while_another_is_away() {
        let is_back = Arc::new(AtomicBool::new(false));
        let [here, away] = [Arc::new(AtomicBool::new(true)), is_back.clone()]
            .map(|answers| Fake::start(move |_| answers.load(SeqCst).then(|| ":1\r\n".into())));
        let mut engines = Engines::new(config(&[&here, &away], false, ""));
        let mut copies = engines.copies_of(FILE, &[0, 1]);
        assert!(!engines.renew(&mut copies));
        assert_eq!(here.asked(), ["PEXPIRE", "PEXPIRE"]);
        assert!(!engines.renew(&mut copies));
        is_back.store(true, SeqCst);
        engines.nodes.all[1].away = None;
        away.asked();
        assert!(engines.renew(&mut copies));
        assert_eq!(away.asked(), ["PEXPIRE", "PEXPIRE"]);
        assert_eq!(here.asked(), [""; 0], "it has done that");
    }

    #[test]
    fn what_an_engine_says_is_told_as_what_it_is_of_a_cluster_and_of_one_alone() {
        let put = |cluster: bool, says: &'static str| {
            let answer = move |word: &str| match word {
                "MULTI" => Some(OK.into()),
                "EXEC" => said("-EXECABORT Transaction discarded because of previous errors."),
                "HSET" => said(says),
                _ => said("+QUEUED"),
            };
            let nodes = halves(move |_, word, _| answer(word));
            let mut engines = Engines::new(config(&[&nodes[0]], cluster, ",copies=1"));
            let failure = engines.put(FILE, 0, 0, b"x").unwrap_err();
            assert_eq!(
                engines.put(FILE, 0, 0, b"x"),
                Err(failure),
                "it has answered, and can be asked again"
            );
            failure
        };
        for cluster in [false, true] {
            assert_eq!(put(cluster, "-OOM command not allowed"), Failure::Full);
            assert_eq!(put(cluster, "-NOPERM no"), Failure::Refused);
            assert_eq!(put(cluster, "-LOADING a dump"), Failure::Away);
            assert_eq!(put(cluster, "-READONLY a replica"), Failure::Away);
            assert_eq!(put(cluster, "-MISCONF no disk"), Failure::Away);
        }
    }
}
