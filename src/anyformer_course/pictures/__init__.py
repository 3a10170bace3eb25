"""The pictures of the lectures, drawn from models and from published figures."""
