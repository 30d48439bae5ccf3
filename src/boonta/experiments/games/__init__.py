"""Board games: agents against one another, against others, and against everything that can be played."""
