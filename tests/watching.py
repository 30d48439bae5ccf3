"""Looking on while threads of Sebulba run."""


def watched(threads):
    """What the learner takes from now on: all items."""
    items, take = [], threads._take

    def taken():
        items.append(take())
        return items[-1]

    threads._take = taken
    return items
