//! The login roles, and what each is for.

/// A login role. None of them is a superuser, may create roles or databases, replicate, or pass row security.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Owns the schemas: DDL, partitions, swaps of a projection.
    Owner,
    /// Inserts and reads audit rows, reads and writes state.
    Writer,
    /// Reads everything.
    Reader,
    /// Reads the public audit views, nothing else.
    Auditor,
    /// Owns the sample database. On the private server only.
    SampleOwner,
    /// Reads the sample data: the role that agents' SQL runs under. On the private server only.
    SampleReader,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 6] =
        [Self::Owner, Self::Writer, Self::Reader, Self::Auditor, Self::SampleOwner, Self::SampleReader];

    /// The name of the login role, and of its file in `keys/`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Owner => "annals_owner",
            Self::Writer => "annals_writer",
            Self::Reader => "annals_reader",
            Self::Auditor => "annals_auditor",
            Self::SampleOwner => "annals_sample_owner",
            Self::SampleReader => "annals_sample_reader",
        }
    }

    /// Whether it belongs to the sample database, to which alone it may then connect.
    #[must_use]
    pub const fn is_sample(self) -> bool {
        matches!(self, Self::SampleOwner | Self::SampleReader)
    }

    /// Whether its sessions begin read-only.
    #[must_use]
    pub const fn is_read_only(self) -> bool {
        matches!(self, Self::Reader | Self::Auditor | Self::SampleReader)
    }
}
