"""The federation without FLARE: what a site does, what the server does, and how they keep it."""
