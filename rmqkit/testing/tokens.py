"""Contract of TokenVerifier, for verifiers that know the users of some valid and invalid tokens.

def test_contract() -> None:
    check_token_verifier(MyVerifier(), valid={token: "alice"}, invalid=[expired])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rmqkit.errors import RequestRefused
from rmqkit.plugin.access import TokenVerifier


def check_token_verifier(
    verifier: TokenVerifier, *, valid: Mapping[str, str], invalid: Iterable[str] = ()
) -> None:
    """Check a verifier: it names the user of each valid token, refuses the invalid ones of its kind without
    showing them, and neither knows nor fails on any other text, also one that begins like a token. Raises
    AssertionError at the first broken rule."""
    for token, user in valid.items():
        assert verifier.principal(token) == user, "a valid token names its user"
        assert verifier.principal(token) == user, "the second time, too"
    for token in invalid:
        _check_refused(verifier, token)
    parts = st.sampled_from([*valid, "", "."])
    texts = st.text() | st.builds(lambda token, text: token[: len(token) // 2] + text, parts, st.text())

    @settings(deadline=None, database=None, phases=(Phase.generate, Phase.shrink))
    @given(texts)
    def check(text: str) -> None:
        try:
            found = verifier.principal(text)
        except RequestRefused as error:
            assert not text or text not in error.remark or len(text) < 8, "a refusal does not show the token"
        else:
            assert found is None or text in valid, "nobody has made that token"

    check()


def _check_refused(verifier: TokenVerifier, token: str) -> None:
    try:
        found = verifier.principal(token)
    except RequestRefused as error:
        assert token not in error.remark, "a refusal does not show the token"
    else:
        raise AssertionError(f"an invalid token names {found!r}")


__all__ = ["check_token_verifier"]
