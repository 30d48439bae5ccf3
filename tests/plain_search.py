"""Tree search written for reading: nodes are objects, one simulation after the other. What the compiled one is held to.

PUCT as in appendix B of Schrittwieser et al. 2020; Gumbel as in Danihelka et al. 2022, whose equations are named.
"""

import math

import numpy as np


class Node:
    """A state: what the model says of it, and the mean of what simulations found below."""

    def __init__(self, state, logits, value):
        self.state, self.logits, self.raw = state, np.asarray(logits, np.float64), float(value)
        self.prior = np.exp(self.logits - self.logits.max())
        self.prior /= self.prior.sum()
        self.value, self.visits = self.raw, 1
        self.children = {}  # action -> (Node, reward, discount, visits)

    def counts(self):
        return np.asarray([self.children[a][3] if a in self.children else 0 for a in range(len(self.prior))])

    def q(self, missing):
        """Of each action; `missing` for those not tried."""
        found = np.full(len(self.prior), float(missing))
        for action, (child, reward, discount, _) in self.children.items():
            found[action] = reward + discount * child.value
        return found


def simulate(root, model, choose):
    """One simulation: down to an action not tried, and back up with what the model says of where it leads."""
    path, node = [], root
    while True:
        action = choose(node, len(path))
        path.append((node, action))
        if action not in node.children:
            break
        node = node.children[action][0]
    state, logits, value, reward, discount = model(node.state, action)
    node.children[action] = (Node(state, logits, value), reward, discount, 0)
    found = value
    for parent, action in reversed(path):
        child, reward, discount, visits = parent.children[action]
        parent.children[action] = child, reward, discount, visits + 1
        found = reward + discount * found
        parent.value = (parent.value * parent.visits + found) / (parent.visits + 1)
        parent.visits += 1


def puct(root, model, simulations, legal, c1=1.25, c2=19652.0):
    """Greedy in the visits: action, share of visits, root value."""
    root = _legal(root, legal)

    def choose(node, depth):
        counts, low = node.counts(), node.value
        q = node.q(low)
        low, high = min(low, q.min()), max(low, q.max())
        q = np.where(counts > 0, (q - low) / max(high - low, 1e-8), 0.0)
        bonus = c1 + math.log((node.visits + c2 + 1) / c2)
        score = q + node.prior * math.sqrt(node.visits) / (1 + counts) * bonus
        return int(np.argmax(np.where(legal, score, -np.inf) if depth == 0 else score))

    for _ in range(simulations):
        simulate(root, model, choose)
    counts = root.counts()
    return int(np.argmax(counts)), counts / counts.sum(), root.value


def gumbel(root, model, simulations, legal, noise, considered=16):
    """Sequential halving at the root: action, improved policy, and the value of that among what was tried."""
    root = _legal(root, legal)
    rounds = _halving(min(considered, int(np.sum(legal))), simulations)

    def score(visits):
        """Equation 8, of the actions with so many visits."""
        whole = np.maximum(noise + root.logits - root.logits.max() + _sigma(root), -1e9)
        return np.where((root.counts() == visits) & legal, whole, -np.inf)

    def choose(node, depth):
        if depth == 0:
            return int(np.argmax(score(rounds[node.counts().sum()])))
        counts = node.counts()  # equation 14
        return int(np.argmax(_softmax(node.logits + _sigma(node)) - counts / (1 + counts.sum())))

    for _ in range(simulations):
        simulate(root, model, choose)
    policy = _softmax(np.where(legal, root.logits + _sigma(root), -1e30))  # equation 11
    tried = root.counts() > 0
    value = np.sum(policy[tried] * root.q(0.0)[tried]) / np.sum(policy[tried])
    return int(np.argmax(score(root.counts().max()))), policy, value


def _sigma(node):
    """Completed values (equation 10, by the mixed value of appendix D), scaled to [0, 1] and by the visits."""
    counts = node.counts()
    total, q = counts.sum(), node.q(0.0)
    tried = counts > 0
    if total:
        prior = np.maximum(node.prior, np.finfo(np.float32).tiny)
        mixed = (node.raw + total * np.sum(prior[tried] * q[tried]) / np.sum(prior[tried])) / (1 + total)
    else:
        mixed = node.raw
    q = np.where(tried, q, mixed)
    return (50 + counts.max()) * 0.1 * (q - q.min()) / max(q.max() - q.min(), 1e-8)


def _halving(considered, simulations):
    """How often the actions that are due at each simulation have been visited."""
    if considered <= 1:
        return list(range(simulations))
    order, visits, left = [], [0] * considered, considered
    while len(order) < simulations:
        for _ in range(max(1, simulations // (math.ceil(math.log2(considered)) * left))):
            order += visits[:left]
            visits[:left] = [n + 1 for n in visits[:left]]
        left = max(2, left // 2)
    return order


def _legal(root, legal):
    return Node(root.state, np.where(legal, root.logits - root.logits.max(), -1e30), root.raw)


def _softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()
