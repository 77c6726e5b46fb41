//! Reads the servers of a backend and their statistics: in one request once the ID of the backend
//! is known, and in two before. The ID is needed because a frontend may have the same name.

use super::{
    Slot,
    response::{
        InvalidResponse, Servers, both_commands, servers_command, slots_of_backend,
        statistics_command,
    },
};

/// Reads the slots of one backend, request by request.
#[derive(Debug)]
pub struct SlotReader<'a> {
    /// Name of the backend.
    backend: &'a str,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// Servers and statistics, of the backend with this ID.
    Both {
        backend_id: String,
    },
    Servers,
    /// Statistics, after this list of servers.
    Statistics {
        backend_id: String,
        servers: String,
    },
}

/// Slots of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSlots {
    /// The slots.
    pub slots: Vec<Slot>,
    /// Numeric ID of the backend (`be_id`).
    pub backend_id: String,
}

impl<'a> SlotReader<'a> {
    /// Starts to read a backend, whose ID may be known from earlier.
    #[must_use]
    pub fn new(backend: &'a str, known_id: Option<String>) -> Self {
        let step = known_id.map_or(Step::Servers, |backend_id| Step::Both { backend_id });
        Self { backend, step }
    }

    /// Returns the commands to send next.
    #[must_use]
    pub fn commands(&self) -> String {
        match &self.step {
            Step::Both { backend_id } => both_commands(self.backend, backend_id),
            Step::Servers => servers_command(self.backend),
            Step::Statistics { backend_id, .. } => statistics_command(backend_id),
        }
    }

    /// Handles the response. Returns the slots, or `None` if another request is needed.
    ///
    /// # Errors
    ///
    /// [`InvalidResponse`] if the response is invalid.
    pub fn handle(&mut self, response: String) -> Result<Option<ReadSlots>, InvalidResponse> {
        match std::mem::replace(&mut self.step, Step::Servers) {
            // Another ID means that HAProxy has another configuration: read again.
            Step::Both { backend_id } => {
                let slots = slots_of_backend(&response, self.backend, &backend_id)?;
                Ok(slots.map(|slots| ReadSlots { slots, backend_id }))
            }
            Step::Servers => {
                let backend_id = Servers::read(&response, self.backend)?.backend_id.to_owned();
                self.step = Step::Statistics { backend_id, servers: response };
                Ok(None)
            }
            Step::Statistics { backend_id, servers } => {
                let slots = Servers::read(&servers, self.backend)?.slots(&response)?;
                Ok(Some(ReadSlots { slots, backend_id }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Responses for the backend `web`, with ID 4 and one server.
    const SERVERS: &str = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_port\n\
                           4 web 1 s1 10.0.0.1 2 0 80\n\n";
    const STATISTICS: &str = "# pxname,svname,scur,\nweb,s1,3,\n\n";

    #[test]
    fn a_backend_with_a_known_id_is_read_in_one_request() {
        let mut reader = SlotReader::new("web", None);
        assert_eq!(reader.commands(), "show servers state web");
        assert_eq!(reader.handle(SERVERS.to_owned()), Ok(None));
        assert_eq!(reader.commands(), "show stat 4 4 -1");
        let read = reader.handle(STATISTICS.to_owned()).unwrap().unwrap();
        assert_eq!((read.slots.len(), read.backend_id.as_str()), (1, "4"));
        let mut reader = SlotReader::new("web", Some(read.backend_id.clone()));
        assert_eq!(reader.commands(), "show servers state web;show stat 4 4 -1");
        assert_eq!(reader.handle(format!("{SERVERS}{STATISTICS}")), Ok(Some(read)));
    }

    #[test]
    fn a_backend_whose_id_changed_is_read_again() {
        let mut reader = SlotReader::new("web", Some("9".to_owned()));
        assert_eq!(reader.handle(format!("{SERVERS}{STATISTICS}")), Ok(None));
        assert_eq!(reader.commands(), "show servers state web");
    }
}
