"""The commands of `specgguf`, one file each: their options and what they call. Begin at the command's name."""
