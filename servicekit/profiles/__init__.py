"""What a person wrote: profiles and settings, read and checked."""
