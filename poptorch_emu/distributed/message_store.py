"""Messages of this package in the store of torch.distributed, signed with the launch's secret.

Everybody who reaches the store's port can read, write and delete entries. So a message without a
valid signature of this launch for its key counts as missing.
"""

from __future__ import annotations

import copy
import hashlib
import hmac

from poptorch_emu.distributed.launch_environment import SECRET, launch_secret
from poptorch_emu.environment import integer_of
from poptorch_emu.log import logger
from poptorch_emu.torch_versions import PrefixStore, Store
from poptorch_emu.untrusted.texts import printable


class MessageStore:
    """A connection of one thread to a store with text messages."""

    def __init__(self, store: Store, secret: str | None = None) -> None:
        """Makes a new connection to a store of torch.distributed, with a prefix for our keys.

        Prefixes of torch.distributed are removed, so that the launcher's own connection has the
        same keys.

        Args:
            store: store of torch.distributed.
            secret: secret of the launch; by default that of the environment.

        Raises:
            Error: the environment has an invalid secret or attempt number.
        """
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        attempt = integer_of("TORCHELASTIC_RESTART_COUNT")
        self._prefix = f"poptorch_emu/{attempt}"
        self._store = self._connected(store)
        self._secret = (launch_secret() if secret is None else secret).encode()
        self._refused: set[str] = set()

    def for_another_thread(self) -> MessageStore:
        """Returns a new connection to the same store."""
        other = copy.copy(self)
        other._store = self._connected(self._store.underlying_store)
        return other

    def _connected(self, store: Store) -> PrefixStore:
        return PrefixStore(self._prefix, store.clone())  # type: ignore[attr-defined]

    def write(self, key: str, message: str) -> None:
        """Writes a message for others to read.

        Raises:
            RuntimeError: the store is gone.
        """
        self._store.set(key, self._signed(key, message))

    def write_first(self, key: str, message: str) -> str:
        """Writes a message unless the key has one; returns the message of the key.

        Raises:
            RuntimeError: the store is gone.
        """
        signed = self._signed(key, message)
        kept = self._message(key, self._store.compare_set(key, "", signed))
        if kept is None:
            self._store.set(key, signed)
            return message
        return kept

    def read(self, key: str) -> str | None:
        """Returns the message of a key; `None` if no process of this launch has written one.

        Raises:
            RuntimeError: the store is gone.
        """
        return self._message(key, self._store.get(key)) if self._store.check([key]) else None

    def _message(self, key: str, value: bytes) -> str | None:
        message = value.partition(b" ")[2].decode(errors="replace")
        if hmac.compare_digest(value, self._signed(key, message).encode()):
            return message
        if key not in self._refused:
            self._refused.add(key)
            logger.warning(
                "A message '%s' from outside of this launch is ignored: %s. The program that "
                "wrote it does not have the secret of the launch (%s).",
                printable(key),
                printable(value[:80].decode(errors="replace")),
                SECRET,
            )
        return None

    def _signed(self, key: str, message: str) -> str:
        signed = f"{self._prefix}\0{key}\0{message}".encode(errors="surrogatepass")
        return f"{hmac.new(self._secret, signed, hashlib.sha256).hexdigest()} {message}"
