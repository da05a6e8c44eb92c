//! `corefit.toml`: what an administrator wants of the daemon. Errors name file, line and key.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use corefit_core::CpuSet;
use corefit_core::decide::Policy;
use corefit_sim::keys::{Bad, key_at, line, place};
use serde::Deserialize;
use toml::de::DeTable;

use super::keys;
use crate::machine::MachineArg;
use crate::text_file;

/// Where the journal is if nobody says otherwise.
pub(crate) const STATE: &str = "/var/lib/corefit";
/// Who may ask for metrics, if nobody says otherwise.
const METRICS: &str = "127.0.0.1:9464";

/// The file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Which machine, as `--machine` names it.
    pub(crate) machine: Option<String>,
    /// Change settings; else only say what would be changed.
    pub(crate) apply: bool,
    /// Tell guests what they get, through their agents.
    pub(crate) tell: bool,
    /// The directory of the journal and of the status socket.
    pub(crate) state: PathBuf,
    /// Where metrics are to be had; `off`: nowhere; `None`: nothing is said of them.
    metrics: Option<String>,
    /// Which controllers decide, and how.
    pub(crate) policy: Policy,
    /// The file's text, to say where something is.
    #[serde(skip)]
    text: String,
}

impl Default for Config {
    fn default() -> Config {
        let (state, policy) = (STATE.into(), Policy::default());
        Config { machine: None, apply: false, tell: true, state, metrics: None, policy, text: String::new() }
    }
}

impl Config {
    /// Reads a file; without one, everything is as usual.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(crate) fn read(file: Option<&Path>) -> Result<Config> {
        file.map_or_else(|| Ok(Config::default()), |file| Config::read_by(file, text_file::of))
    }

    /// The same for a daemon that is at work: a file that it would have to wait for is refused.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(crate) fn read_again(file: Option<&Path>) -> Result<Config> {
        file.map_or_else(|| Ok(Config::default()), |file| Config::read_by(file, text_file::at_once))
    }

    fn read_by(file: &Path, read: fn(&Path, &str, &str) -> Result<String>) -> Result<Config> {
        let (name, example) = (file.display(), "docs/operating.md of corefit's source has an example");
        let text = read(file, "configuration", example)?;
        let config = Config::parse(&text).map_err(|what| anyhow!("{name}, {what}"))?;
        // As it is while somebody writes it anew: no VM is excluded by it.
        if DeTable::parse(&text).is_ok_and(|document| document.get_ref().is_empty()) {
            bail!(
                "{name}: says nothing; give at least one key, such as apply = false, or no --config: {example}"
            );
        }
        Ok(config)
    }

    /// On a simulated host without a configuration the `[policy]` of its scenario counts, as in `corefit sim`; with one, that it does not
    /// is said. `file` is where this was read from.
    ///
    /// # Errors
    /// If there is no such scenario.
    pub(crate) fn or_scenario(self, file: Option<&Path>, machine: &MachineArg) -> Result<Config> {
        let Some(file) = file else {
            let Some((policy, lists)) = machine.policy()? else { return Ok(self) };
            if !lists.is_empty() {
                tell!(
                    "corefit: the [policy] of {} has lists, which are no single policy: the first of each counts ({})",
                    machine.name(),
                    lists.join(", ")
                );
            }
            return Ok(Config { policy, ..self });
        };
        if matches!(machine.policy(), Ok(Some(_))) {
            tell!("corefit: the policy of {} counts, not the [policy] of {}", file.display(), machine.name());
        }
        Ok(self)
    }

    fn parse(text: &str) -> Result<Config> {
        let unreadable = |error: toml::de::Error| {
            let line = error.span().map_or(1, |span| line(text, span.start));
            let key = error.span().and_then(|span| key_at(text, span.start));
            let key = key.map_or(String::new(), |key| format!(", key {key}"));
            anyhow!("line {line}{key}: this is no TOML: {}", error.message().replace('\n', " "))
        };
        let document = DeTable::parse(text)
            .map_err(|error| unquoted(text, &error).unwrap_or_else(|| unreadable(error)))?;
        if let Some(Bad { at, key, what }) = keys::bad(document.get_ref()) {
            bail!("line {}, key {}: {what}", line(text, at), crate::printable::text(&key));
        }
        let mut config: Config = toml::from_str(text).map_err(unreadable)?;
        if let Err(error) = config.policy.check() {
            let line = line_of_key(text, &format!("policy.{}", error.key)).unwrap_or(1);
            bail!("line {line}, key policy.{}: {}", error.key, error.what);
        }
        if let Err(what) = config.metrics(false) {
            bail!("line {}, key metrics: {what}", line_of_key(text, "metrics").unwrap_or(1));
        }
        // Where a command is started says nothing of where the daemon was.
        if config.state.is_relative() {
            let line = line_of_key(text, "state").unwrap_or(1);
            bail!(
                "line {line}, key state: {:?} is no absolute path; give one, such as {STATE:?}",
                config.state
            );
        }
        config.text = text.into();
        Ok(config)
    }

    /// Takes over what counts at once of one that was read again.
    pub(super) fn follow(&mut self, again: Config) {
        (self.policy, self.tell, self.text) = (again.policy, again.tell, again.text);
    }

    /// Whether what it says of pCPUs is true of a host; `file` is where it was read from.
    ///
    /// # Errors
    /// If it is not, and where that is said.
    pub(crate) fn fits(&self, file: Option<&Path>, (pcpus, offline): (&CpuSet, &CpuSet)) -> Result<()> {
        let fits = self.policy.fits(pcpus, offline);
        fits.map_err(|error| {
            anyhow!("{}: {}", self.place(file, &format!("policy.{}", error.key)), error.what)
        })
    }

    /// Why its machine cannot be had, where that is said.
    pub(crate) fn not_opened(&self, file: Option<&Path>, error: anyhow::Error) -> anyhow::Error {
        if file.is_none() || self.machine.is_none() {
            return error;
        }
        let (place, why) = (self.place(file, "machine"), format!("{error:#}"));
        anyhow!("{place}: {}", why.strip_prefix("--machine ").unwrap_or(&why))
    }

    /// Why something that the configuration names cannot be, with its place if it names it.
    pub(super) fn of_key(&self, file: Option<&Path>, key: &str, error: anyhow::Error) -> anyhow::Error {
        if line_of_key(&self.text, key).is_none() {
            return error;
        }
        // What kind of error it is stays.
        error.context(self.place(file, key))
    }

    /// Where a key is: file, line and key.
    fn place(&self, file: Option<&Path>, key: &str) -> String {
        let file = file.map_or_else(|| "configuration".into(), |file| file.display().to_string());
        let line = line_of_key(&self.text, key).map_or(String::new(), |line| format!(", line {line}"));
        format!("{file}{line}, key {key}")
    }

    /// Where metrics are to be had; `usual`: also where nothing is said of them.
    ///
    /// # Errors
    /// If that is no address, or one without a port of its own.
    pub(crate) fn metrics(&self, usual: bool) -> Result<Option<SocketAddr>, String> {
        let said = match &self.metrics {
            Some(said) => said,
            None if usual => METRICS,
            None => "off",
        };
        if said == "off" {
            return Ok(None);
        }
        let address: SocketAddr =
            said.parse().map_err(|_| format!("{said:?} is no address such as {METRICS:?}, nor \"off\""))?;
        if address.port() == 0 {
            return Err(format!(
                "{said:?} is another port at each start; give one, as in {METRICS:?}, or \"off\""
            ));
        }
        Ok(Some(address))
    }
}

/// A daemon's directory, for whoever asks it, or cleans up after it.
#[derive(clap::Args)]
pub(super) struct StateArg {
    /// The daemon's directory [default: that of the configuration, else /var/lib/corefit]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The daemon's configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StateArg {
    /// Where it is.
    ///
    /// # Errors
    /// If the configuration cannot be read, and nothing else says it.
    pub(super) fn dir(&self) -> Result<PathBuf> {
        self.said_dir().map_err(|error| match &self.state {
            Some(_) => error,
            None => anyhow!("{error:#}; --state DIR does without the configuration"),
        })
    }

    fn said_dir(&self) -> Result<PathBuf> {
        let configured = || Config::read(self.config.as_deref()).map(|config| config.state);
        absolute(self.state.clone().map_or_else(configured, Ok)?)
    }

    /// The machine that the configuration names, if there is one that can be read.
    pub(super) fn machine(&self) -> Option<String> {
        Config::read(Some(self.config.as_deref()?)).ok()?.machine
    }

    /// Why the machine that the configuration names cannot be had, where that is said.
    pub(super) fn not_opened(&self, error: anyhow::Error) -> anyhow::Error {
        let file = self.config.as_deref();
        match file.map(|file| Config::read(Some(file))) {
            Some(Ok(config)) => config.not_opened(file, error),
            _ => error,
        }
    }

    /// Where it is; where the configuration cannot be read now, and so is not the one that the daemon has read, where it usually is.
    pub(super) fn dir_or_usual(&self) -> PathBuf {
        self.said_dir().unwrap_or_else(|error| {
            tell!("corefit: {error:#}; looking in {STATE}");
            STATE.into()
        })
    }
}

/// A directory by a name that means the same wherever it is read, as in a remedy.
pub(super) fn absolute(dir: PathBuf) -> Result<PathBuf> {
    std::path::absolute(&dir).map_err(|error| anyhow!("{}: {error}", dir.display()))
}

/// Of a value that is a bare word and could not be in quotes either, as `apply = yes`: what can be.
fn unquoted(text: &str, error: &toml::de::Error) -> Option<anyhow::Error> {
    let (before, rest) = text.split_at_checked(error.span()?.start)?;
    let word = rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').next()?;
    if word.is_empty() || !before.trim_end().ends_with('=') {
        return None;
    }
    let quoted = format!("{before}\"{word}\"{}", &rest[word.len()..]);
    let document = DeTable::parse(&quoted).ok()?;
    let Bad { at, key, what } = keys::bad(document.get_ref())?;
    let what = what.strip_prefix(&format!("\"{word}\"")).map_or(what.clone(), |what| format!("{word}{what}"));
    (at == before.len())
        .then(|| anyhow!("line {}, key {}: {what}", line(text, at), crate::printable::text(&key)))
}

/// The line of a key such as `policy.vm[2].min`, or of the nearest table above it.
fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    place(document.get_ref(), key).map(|at| line(text, at))
}

#[cfg(test)]
mod tests {
    use super::super::Passing;
    use super::*;

    #[test]
    fn a_scenario_that_became_a_bad_one_is_refused_and_not_taken_for_one_without_a_policy() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let machine = MachineArg::named(&format!("sim:{}", file.path().display()));
        let vm =
            "until = \"1s\"\nhardware = { cores = 2 }\n[[vm]]\nname = \"a\"\nvcpus = 2\nprogram = \"hog\"\n";
        let read = |policy: &str| {
            std::fs::write(file.path(), format!("{vm}[policy]\nsize = {policy}\n")).unwrap();
            Config::default().or_scenario(None, &machine).map(|config| config.policy.size)
        };
        assert_eq!(read("\"vscale\"").unwrap(), corefit_core::decide::Sizer::Vscale);
        let refused = read("\"best\"").unwrap_err().to_string();
        assert!(refused.contains("line 8, policy.size: \"best\" cannot be"), "{refused}");
    }

    #[test]
    fn errors_name_line_and_key() {
        for (text, start) in [
            (
                "aply = true\n",
                "line 1, key aply: there is no such key; there are machine, apply, tell, state,",
            ),
            (
                "size = \"none\"\n",
                "line 1, key size: there is no such key; size stands below [policy]; there are",
            ),
            ("apply = true\n\nmetrics = 3\n", "line 3, key metrics: 3 cannot be; give an address in quotes"),
            ("apply = \"yes\"\n", "line 1, key apply: \"yes\" cannot be; give true or false"),
            (
                "[[policy.vm]]\nname = \"a\"\nmin = \"two\"\n",
                "line 3, key policy.vm[0].min: \"two\" cannot be; give a whole number of vCPUs, 1 or more",
            ),
            (
                "[[policy.vm]]\nname = \"a\"\npriority = -1000000000\n",
                "line 3, key policy.vm[0].priority: -1000000000 cannot be; give a whole number of at most nine digits",
            ),
            (
                "[policy]\nvm = [{ name = \"a\",\n max = -1 }]\n",
                "line 3, key policy.vm[0].max: -1 cannot be; give",
            ),
            (
                "policy.interval_ms = 1.5\n",
                "line 1, key policy.interval_ms: 1.5 cannot be; give a whole number of",
            ),
            ("metrics = \"here\"\n", "line 1, key metrics: \"here\" is no address"),
            (
                "apply = true\nmetrics = \"127.0.0.1:0\"\n",
                "line 2, key metrics: \"127.0.0.1:0\" is another port at each start; give one",
            ),
            (
                "[policy]\nsize = \"biggest\"\n",
                "line 2, key policy.size: \"biggest\" cannot be; give one of \"none\", \"vcpu-bal\"",
            ),
            (
                "[policy]\n\ninterval_ms = 1\n",
                "line 3, key policy.interval_ms: give 50 to 10000: what guests say",
            ),
            (
                "[[policy.vm]]\nname = \"a\"\n\n[[policy.vm]]\nname = \"b\"\nmin = 0\n",
                "line 6, key policy.vm[1].min: is 0",
            ),
            ("[[policy.vm]]\nmin = 1\n", "line 1, key policy.vm[0].name: is missing"),
            ("apply = \n", "line 1, key apply: this is no TOML: "),
            ("tell = true\napply = yes # now\n", "line 2, key apply: yes cannot be; give true or false"),
            (
                "[policy]\nsmooth = on\nsize = \"none\"\n",
                "line 2, key policy.smooth: on cannot be; give true or false",
            ),
            ("policy.size = biggest\n", "line 1, key policy.size: biggest cannot be; give one of \"none\""),
            ("policy.size = none\n", "line 1, key policy.size: this is no TOML: "),
            (
                "[[policy.vm]]\nname = \"a\"\nmin = 3\nmax = 2\n",
                "line 3, key policy.vm[0].min: is larger than max; give at most max, or leave one of them out",
            ),
            (
                "apply = true\nstate = \"a\"\n",
                "line 2, key state: \"a\" is no absolute path; give one, such as \"/var/lib/corefit\"",
            ),
            (
                "[policy] # all\nsize = \"none\"\nsize = \"none\"\n",
                "line 3, key policy.size: this is no TOML: duplicate key",
            ),
            (
                "[[policy.vm]]\nname = \"a\"\n[[policy.vm]]\nname = \"b\"\nname = \"c\"\n",
                "line 5, key policy.vm[1].name: this is no TOML: duplicate key",
            ),
            (
                "[policy]\nvm = [{ name = \"a\" } { name = \"b\" }]\n",
                "line 2, key policy.vm[0]: this is no TOML: ",
            ),
            (
                "[policy]\nvm = [{ name = \"a\",\n max = 8, min = 1, min = 2 }]\n",
                "line 3, key policy.vm[0].min: this is no TOML: duplicate key",
            ),
            (
                "[policy]\nvm = [{ name = \"a\", max = 8 }, { name = \"[b],{\\\"=\", # = [\n min = }]\n",
                "line 3, key policy.vm[1].min: this is no TOML: ",
            ),
            (
                "[policy]\nvm = [\n { name = \"a\", min = }\n]\n",
                "line 3, key policy.vm[0].min: this is no TOML: ",
            ),
            ("[policy\nsize = \"none\"\n", "line 1: this is no TOML: "),
            (
                "[policy]\nvm = [{ name = '''\n[x]\ny = '''}]\nsize = \"none\" x\n",
                "line 5, key policy.size: this is no TOML: ",
            ),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(start), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_changes_no_host_has_metrics_only_where_they_are_asked_for() {
        let had = |text: &str| Config::parse(text).unwrap().metrics(false).unwrap();
        assert_eq!(had(""), None);
        assert_eq!(had("metrics = \"off\""), None);
        assert_eq!(had("metrics = \"127.0.0.1:9464\"").unwrap().port(), 9464);
    }

    #[test]
    fn what_may_pass_by_itself_still_does_where_the_configuration_names_it() {
        let config = Config::parse("state = \"/x\"\n").unwrap();
        let error = config.of_key(Some(Path::new("a.toml")), "state", Passing("is taken".into()).into());
        assert_eq!(format!("{error:#}"), "a.toml, line 1, key state: is taken");
        assert!(error.downcast_ref::<Passing>().is_some());
    }

    #[test]
    fn a_file_that_says_nothing_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, fine) in [("", false), ("\n # apply = true\n\t\n", false), ("apply = false", true)] {
            std::fs::write(file.path(), text).unwrap();
            for read in [Config::read(Some(file.path())), Config::read_again(Some(file.path()))] {
                assert_eq!(read.is_ok(), fine, "{text:?}");
                assert!(read.err().is_none_or(|error| error.to_string().contains(": says nothing; give")));
            }
        }
        std::fs::write(file.path(), b"apply = true\n# \xfcber\n").unwrap();
        let refused = Config::read(Some(file.path())).unwrap_err().to_string();
        assert!(refused.contains(": line 2 is no text in UTF-8; give a configuration"), "{refused}");
    }

    #[test]
    fn who_is_at_work_waits_for_no_pipe_but_who_begins_reads_one() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let refused = Config::read_again(Some(&pipe)).unwrap_err().to_string();
        assert!(
            refused.contains("pipe: is no regular file") && refused.contains("configuration"),
            "{refused}"
        );
        let refused = Config::read_again(Some(dir.path())).unwrap_err().to_string();
        assert!(refused.contains("is a directory"), "{refused}");
        let to = pipe.clone();
        let writer = std::thread::spawn(move || std::fs::write(to, "apply = true\n"));
        assert!(Config::read(Some(&pipe)).unwrap().apply);
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn without_a_file_nothing_is_applied_and_metrics_stay_on_this_machine() {
        let config = Config::read(None).unwrap();
        assert!(!config.apply);
        assert!(config.metrics(true).unwrap().unwrap().ip().is_loopback());
        assert_eq!(Config::parse("").unwrap(), config);
        assert_eq!(Config::parse("metrics = \"off\"").unwrap().metrics(true), Ok(None));
        assert!(
            Config::read(Some(Path::new("/nonexistent.toml")))
                .unwrap_err()
                .to_string()
                .contains("/nonexistent.toml")
        );
    }
}
