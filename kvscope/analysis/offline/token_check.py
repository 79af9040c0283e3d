"""Whether a tokenizer makes as many tokens as the engine counted."""

import dataclasses

from kvscope.analysis.offline.report import Evidence
from kvscope.errors import UsageError


@dataclasses.dataclass(slots=True)
class TokenCheck:
    """Prompts that were tokenised here, those whose count the engine told, and those where it told another.

    ``said`` has both numbers of the first of the last.
    """

    made: int = 0
    known: int = 0
    wrong: int = 0
    said: str = ""

    def add(self, request_id: str, tokens: int, counted: int | None) -> None:
        """Count a prompt of which ``tokens`` were made here; ``counted`` is the engine's number."""
        self.made += 1
        if counted is None:
            return
        self.known += 1
        if counted != tokens:
            self.wrong += 1
            self.said = self.said or (
                f"the engine counted {counted:,} prompt tokens for {request_id}, this tokenizer makes "
                f"{tokens:,}"
            )

    def join(self, other: "TokenCheck") -> None:
        """Add another's counts."""
        self.made += other.made
        self.known += other.known
        self.wrong += other.wrong
        self.said = self.said or other.said

    def judge(self, evidence: Evidence, *, estimated: bool) -> None:
        """Note what it means; ``estimated``: no tokenizer was named.

        Raises ``UsageError`` where most counts are others.
        """
        if self.made and estimated:
            evidence.estimate(
                "no tokenizer: four bytes of text are taken as a token; name the model's with --tokenizer"
            )
            return
        if not self.wrong:
            return
        if 2 * self.wrong > self.known:
            raise UsageError(
                f"the tokenizer does not fit {self.wrong:,} of {self.known:,} requests: {self.said}; "
                "name the model's"
            )
        evidence.estimate(f"{self.wrong:,} of {self.known:,} token counts differ: {self.said}")
