//! A message of the Bot API, as the agent sees it.
