"""Stores a message once that is sent again within a window: its sender gets the place of the first one."""
