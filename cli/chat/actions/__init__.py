"""What the slash commands do, by what they are about. The table in `slash` names them; errors are raised, the loop
tells them."""
