"""Sample Factory's Atari training with ALE registered in every process that it spawns: they import the main module."""

import sys

import ale_py  # type: ignore[import-not-found]  # noqa: F401 - registers ALE's environments with Gymnasium

if __name__ == "__main__":
    from sf_examples.atari.train_atari import main  # type: ignore[import-not-found]

    sys.exit(main())
