"""What is meant by a name that is not known: the nearest ones, and what other libraries call the same."""

from collections.abc import Iterable
from difflib import SequenceMatcher

FEW = 12  # names that are read
ENVS = "boonta list envs"
NEAREST = 3  # names that are suggested
LIKE = 0.6  # how like a name must be
PART = 4  # letters of a name that say something within another

# By what users of other libraries call it.
ALIASES = {
    "lr": ("learning_rate", "policy_learning_rate", "value_learning_rate"),
    "alpha": ("learning_rate", "temperature"),
    "gamma": ("discount",),
    "lambda": ("gae_lambda",),
    "ent_coef": ("entropy_cost", "temperature"),
    "entropy_coef": ("entropy_cost",),
    "vf_coef": ("value_cost",),
    "n_steps": ("unroll", "n_step"),
    "num_steps": ("unroll",),
    "rollout_length": ("unroll",),
    "train_freq": ("unroll",),
    "batch_size": ("batch", "value_batch"),
    "n_epochs": ("epochs",),
    "update_epochs": ("epochs",),
    "num_minibatches": ("minibatches",),
    "clip_range": ("clip",),
    "clip_coef": ("clip",),
    "clip_eps": ("clip",),
    "norm_adv": ("normalize_advantages",),
    "tau": ("target_rate",),
    "buffer_size": ("capacity",),
    "learning_starts": ("minimum",),
    "target_update_interval": ("target_interval",),
    "target_network_frequency": ("target_interval",),
    "exploration_fraction": ("explore_for",),
    "exploration_final_eps": ("explore_last",),
    "net_arch": ("hidden",),
    "hidden_sizes": ("hidden",),
    "n_envs": ("envs",),
    "num_envs": ("envs",),
    "total_timesteps": ("steps",),
    "timesteps": ("steps",),
    "num_timesteps": ("steps",),
    "a2c": ("vtrace",),
    "a3c": ("vtrace",),
    "impala": ("vtrace",),
    "ray": ("fleet",),
}


def nearest_names(word: str, known: Iterable[str], like: float = LIKE) -> list[str]:
    """At most three of `known` that may be meant, the likeliest first; in any case, with a family or without.

    Args:
        word: what was said.
        known: names.
        like: how like a name must be, from 0 to 1.
    """
    known = list(known)
    if meant := [name for name in ALIASES.get(word.casefold().replace("-", "_"), ()) if name in known]:
        return meant[:NEAREST]
    likeness = {name: _likeness(word.casefold(), name.casefold()) for name in sorted(known, reverse=True)}  # v1 first
    return sorted((name for name in likeness if likeness[name] >= like), key=lambda name: -likeness[name])[:NEAREST]


def nearest(word: str, known: Iterable[str], where: str = "") -> str:
    """`: did you mean 'steps'?`, or nothing; `where` stands before each name."""
    found = [repr(where + name) for name in nearest_names(word, known)]
    return f": did you mean {' or '.join(filter(None, [', '.join(found[:-1]), found[-1]]))}?" if found else ""


def unknown(what: str, value: str, allowed: Iterable[str], see: str = "", where: str = "") -> ValueError:
    """The error for a `value` that is not one of `allowed`: it names the nearest, and all where these are few.

    Args:
        what: it was to be.
        value: it.
        allowed: names.
        see: the command that lists them.
        where: what stands before the value.
    """
    allowed = sorted(allowed)
    near, few = nearest(value, allowed, where), len(allowed) <= FEW
    if few:
        listed = f"allowed: {', '.join(allowed) or 'none'}"
    elif near:
        listed = f"there are {len(allowed)}"
    else:
        listed = f"the nearest of {len(allowed)}: {', '.join(nearest_names(value, allowed, 0.0))}"
    told = f"{where}{value}" if where else repr(value)
    return ValueError(f"unknown {what} {told}{near or ';'} {listed}{see and f'; see `{see}`'}")


def canonical(word: str, known: Iterable[str]) -> str:
    """The one of `known` that is `word` in another case; else the word itself."""
    return next((name for name in known if name.casefold() == word.casefold()), word)


def _likeness(word: str, name: str) -> float:
    """From 0 to 1."""
    found = 0.0
    for part in (name, name.partition(":")[2]):
        if part:
            inside = min(len(word), len(part)) >= PART and (word in part or part in word)
            found = max(found, SequenceMatcher(None, word, part).ratio(), 0.8 * inside)
    return found
